"""Whether the database has what clients were told: nothing lost, doubled, stale or sold twice, and each change
confirmed exactly once.

The dump is one snapshot of the primary, wherever that is now, over a new session. Requests go on while it is
taken: what was answered before oracles began to look has to be in it, what came later may be. Rows that no request
of this load speaks of (the load of an earlier day) have to stay as they were at the gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from labctl.oracles.nodes import sections
from labctl.oracles.postgres import PATIENCE_S, SERVERS, ask, primaries
from labctl.run.ledger import KNOWN_NOT_DONE, Line, against, replay
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_TOLD = 6
_DUMP = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
\\echo '## bookings'
SELECT reference, CASE WHEN state = 'cancelled' THEN '' ELSE flight || '/' || version END, version, state
  FROM bookings ORDER BY reference;
\\echo '## outbox'
SELECT reference, version, kind, sent IS NOT NULL, round(extract(epoch FROM now() - created))
  FROM outbox ORDER BY id;
\\echo '## seats'
SELECT f.id, f.free, f.seats, count(b.reference) FILTER (WHERE b.state = 'booked')
  FROM flights f LEFT JOIN bookings b ON b.flight = f.id GROUP BY f.id ORDER BY f.id;
COMMIT;
"""


class Ledger(Oracle):
    """The bookings of the database can be explained by the ledger of the load; see the module.

    `servers`: nodes with PostgreSQL; exactly one takes writes. A change that is not confirmed within
    `confirm_within_s` is a failure; `sink`: the node of the store that takes confirmations, "" to not look there.
    """

    servers: tuple[str, ...] = SERVERS
    sink: str = "w1"
    confirm_within_s: float = 20.0

    @property
    def name(self) -> str:
        return "ledger"

    @property
    def aspect(self) -> Aspect:
        return "integrity"

    @property
    def moves(self) -> bool:
        return True

    def look(self, lab: Lookout) -> Seen:
        roles, errors = primaries(lab, self.servers)
        writable = sorted(node for node, role in roles.items() if role == "f")
        seen: dict[str, object] = {"writable": writable, "errors": errors}
        if len(writable) != 1:
            return seen
        said = ask(lab, writable[0], _DUMP, patience_s=PATIENCE_S)
        if said.error:
            return {**seen, "errors": {**errors, writable[0]: said.error}}
        for part, lines in sections(said.text).items():
            seen[part] = [line.split("\t") for line in lines]
        if self.sink:
            seen["confirmed"] = self._confirmed(lab)
        return seen

    def _confirmed(self, lab: Lookout) -> list[str] | None:
        """Names of the confirmations that were handed over, or None where the store does not answer."""
        scan = "timeout -k 2 20 valkey-cli --scan --pattern 'confirmation:*' --count 1000"
        done = lab.sh(self.sink, scan, timeout_s=60.0)
        return None if done.status else [line.removeprefix("confirmation:") for line in done.stdout.split()]

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        if len(after["writable"]) != 1:
            why = "; ".join(f"{node}: {error}" for node, error in sorted(after["errors"].items()))
            many = f"{' and '.join(after['writable']) or 'no server'} would take writes"
            return self.found(Outcome.FAIL, many + (f" ({why})" if why else ""))
        if "seats" not in after:
            return self.found(
                Outcome.FAIL, f"the database cannot be read: {after['errors'][after['writable'][0]]}"
            )
        if "seats" not in before:
            return self.found(Outcome.UNKNOWN, "the database was not read at the gate")
        kinds: list[tuple[str, str]] = []
        kinds += self._rows(before, after, window)
        kinds += _seats(before, after)
        if self.sink or after["outbox"]:
            kinds += self._confirmations(after, window)
        count = Counter(kind for kind, _ in kinds)
        told = [
            f"{number} {kind}, such as {next(t for k, t in kinds if k == kind)}" for kind, number in count.items()
        ]
        measures = {"bookings": len(after["bookings"]), "wrong": len(kinds), "asked": len(window.lines)}
        return self.found(Outcome.FAIL if kinds else Outcome.PASS, *told[:_TOLD], **measures)

    def _rows(self, before: Seen, after: Seen, window: Window) -> Iterator[tuple[str, str]]:
        """Bookings that cannot be explained."""
        possible = may_have(window.lines, window.looked, window.end_s)
        found = {reference: value for reference, value, _, _ in after["bookings"]}
        doubled = [ref for ref, times in Counter(row[0] for row in after["bookings"]).items() if times > 1]
        yield from (("doubled", f"{reference} is there more than once") for reference in doubled)
        mine = {key: value for key, value in found.items() if key in possible}
        yield from ((problem.kind, str(problem)) for problem in against(possible, mine))
        old = {row[0]: row[1:] for row in before["bookings"] if row[0] not in possible}
        now = {row[0]: row[1:] for row in after["bookings"] if row[0] not in possible}
        for reference in sorted({*old, *now}):
            if old.get(reference) != now.get(reference):
                yield "changed without being asked", f"{reference}"

    def _confirmations(self, after: Seen, window: Window) -> Iterator[tuple[str, str]]:
        """Changes that were not confirmed, or more than once."""
        mine = {line.key for line in window.lines if line.key}
        confirmed = after.get("confirmed")
        if self.sink and confirmed is None:
            yield "store of confirmations that does not answer", self.sink
        versions: dict[str, list[int]] = {}
        handed = set(confirmed or ())
        for reference, version, _, sent, age in after["outbox"]:
            if reference not in mine:
                continue
            versions.setdefault(reference, []).append(int(version))
            if sent != "t" and float(age) > self.confirm_within_s:
                yield "confirmations late", f"{reference} version {version}, {age} s old"
            if sent == "t" and confirmed is not None and f"{reference}:{version}" not in handed:
                yield "confirmations marked and not sent", f"{reference} version {version}"
        most = Counter(line.key for line in window.lines if line.is_write and line.answer not in KNOWN_NOT_DONE)
        for name in sorted(handed):
            reference, _, version = name.rpartition(":")
            if reference in mine and int(version) > most[reference]:
                yield "confirmations of nothing", f"{reference} version {version}"
        for reference, _, version, _ in after["bookings"]:
            told = sorted(versions.get(reference, ()))
            if reference in mine and told != list(range(1, int(version) + 1)):
                yield "changes not confirmed once", f"{reference} in version {version} has confirmations of {told}"


def may_have(lines: Sequence[Line], looked_s: float, end_s: float) -> Mapping[str, frozenset[str]]:
    """Which values each key may have in a snapshot of a moment between the two."""
    possible = dict(replay(line for line in lines if line.ended_s <= looked_s)[0])
    for line in lines:
        if not line.key:
            continue
        if (
            line.is_write
            and line.answer not in KNOWN_NOT_DONE
            and line.ended_s > looked_s
            and line.sent_s <= end_s
        ):
            possible[line.key] = possible.get(line.key, frozenset({""})) | {line.value or ""}
        possible.setdefault(line.key, frozenset({""}))
    return possible


def _seats(before: Seen, after: Seen) -> Iterator[tuple[str, str]]:
    """Flights that were sold beyond their seats, or whose seats got lost: free and booked ones add up."""
    for flight, free, seats, booked in after["seats"]:
        if int(booked) > int(seats):
            yield "flights oversold", f"flight {flight} has {seats} seats and {booked} bookings"
        elif int(free) + int(booked) != int(seats):
            yield "flights whose seats do not add up", f"flight {flight}: {free} free, {booked} booked, of {seats}"
    gone = sorted({row[0] for row in before["seats"]} - {row[0] for row in after["seats"]})
    yield from (("flights gone", f"flight {flight}") for flight in gone)
