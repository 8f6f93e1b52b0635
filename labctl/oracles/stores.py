"""Whether etcd and Valkey are whole: every member serves and agrees, and what was acknowledged is kept."""

from __future__ import annotations

from fnmatch import fnmatchcase

from labctl.oracles.nodes import on_each, python
from labctl.oracles.scope import differences
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome


class Stores(Oracle):
    """Each of `members` is a member of the etcd cluster it was in, has a leader and no alarm, and serves reads
    that a majority agrees to. `cache` runs Valkey, whose last writes to the disk succeeded.

    `rebuilt`: a repair may have removed a member and added it again, under another number.
    """

    members: tuple[str, ...] = ("w1", "w2", "w3")
    cache: str = "w1"
    within_s: float = 8.0
    rebuilt: bool = False
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "stores"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    def look(self, lab: Lookout) -> Seen:
        return look(lab, self.members, self.cache, self.within_s)

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        bad: list[str] = []
        for node in self.members:
            now, was = after[node]["etcd"], before[node]["etcd"]
            if "error" in now:
                bad.append(f"{node}: etcd: {now['error']}")
                continue
            if now["leader"] in ("", "0"):
                bad.append(f"{node}: etcd has no leader")
            bad += [f"{node}: etcd has the alarm {alarm}" for alarm in now["alarms"]]
            if now["cluster"] != was.get("cluster"):
                bad.append(f"{node}: etcd is of another cluster")
            old, new = was.get("members", {}), now["members"]
            if (sorted(old) != sorted(new)) if self.rebuilt else old != new:
                bad.append(f"{node}: the members of etcd are {_listed(now)}, were {_listed(was)}")
        if self.cache:
            bad += _kept(self.cache, after[self.cache]["valkey"])
        return self.found(Outcome.FAIL if bad else Outcome.PASS, *bad, members=len(self.members))


class StoreScope(Oracle):
    """Settings of Valkey are as they were, those of the server that runs, whatever its file says.

    `permitted`: globs of `node:valkey SETTING`. One that does not answer has changed nothing; others tell that.
    """

    permitted: tuple[str, ...] = ()
    cache: str = "w1"
    within_s: float = 8.0

    @property
    def name(self) -> str:
        return "store_scope"

    @property
    def aspect(self) -> Aspect:
        return "scope"

    def look(self, lab: Lookout) -> Seen:
        return look(lab, (), self.cache, self.within_s)

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        was, now = (seen[self.cache]["valkey"].get("settings", {}) for seen in (before, after))
        if not was or not now:
            return self.found(
                Outcome.PASS if was else Outcome.UNKNOWN, *(() if was else ("not read at the gate",))
            )
        changes = [f"{self.cache}:{change}" for change in differences({"valkey": was}, {"valkey": now})]
        foreign = [c for c in changes if not any(fnmatchcase(c.split(" was ")[0], p) for p in self.permitted)]
        return self.found(Outcome.FAIL if foreign else Outcome.PASS, *foreign, changes=len(changes))


def look(lab: Lookout, members: tuple[str, ...], cache: str, within_s: float) -> Seen:
    """What the stores of each node say."""
    nodes = sorted({*members, cache} - {""})

    def one(node: str) -> Seen:
        given = {"etcd": node in members, "valkey": node == cache, "within_s": within_s}
        seen: Seen = python(lab, node, "stores", given, timeout_s=5 * within_s + 40.0)
        return seen

    return on_each(nodes, one)


def _kept(node: str, valkey: Seen) -> list[str]:
    if "error" in valkey:
        return [f"{node}: Valkey: {valkey['error']}"]
    return [f"{node}: Valkey: {name} is {value}" for name, value in valkey["kept"].items() if value != "ok"]


def _listed(etcd: Seen) -> str:
    return ", ".join(f"{name} ({text.split()[0]})" for name, text in sorted(etcd.get("members", {}).items()))
