"""`labctl limits`, and keeping to them when a fault is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import click

from labctl import limits as model
from labctl.cli.base import LabCommand, pass_session
from labctl.cli.fleet import names_of, some, warn_all
from labctl.cli.recovering import find_injections
from labctl.cli.session import Session
from labctl.errors import ExitCode, LabctlError, UsageError
from labctl.lab.model import Node
from labctl.limits import Gauge, Limits, Use
from labctl.report.text import labelled

NO_LIMIT = "none"
F = TypeVar("F", bound=Callable[..., Any])


class _Limit(click.ParamType[int]):
    """A number, or that there is none: 0 here, None in :class:`Limits`."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == NO_LIMIT:
            return 0
        if not str(value).isascii() or not str(value).isdigit() or not int(value):
            self.fail(f"{value!r}; allowed: a number from 1, or {NO_LIMIT}", param, ctx)
        return int(value)


def _limit_option(name: str, help: str) -> Callable[[F], F]:
    return click.option(f"--{name}", name.replace("-", "_"), type=_Limit(), metavar="N", help=help)


@click.command("limits", cls=LabCommand)
@_limit_option("nodes", "Nodes that may have a fault at once; one that does not answer counts.")
@_limit_option("faults", "Faults at once in the lab; one on several nodes is one.")
@_limit_option("faults-per-node", "Faults at once on a node.")
@click.option(
    "--quorum",
    type=click.Choice(get_args(model.Quorum)),
    help="Never the majority: of nodes labelled quorum=NAME (labels), of these and of the whole lab (lab).",
)
@click.option("--default", "reset", is_flag=True, help="The limits that a lab of this provider has at first.")
@pass_session
def limits_command(session: Session, /, reset: bool, **given: Any) -> int:
    """Show or set how much may be broken at once.

    With how much is broken now. The word none takes a limit away. `labctl inject` refuses what would exceed one,
    unless it is told --exceed-limits.
    """
    wanted = {key: value or None for key, value in given.items() if value is not None}
    if reset and wanted:
        raise UsageError("--default stands alone", "see: labctl limits --help")
    path, kind = session.limits_file, session.provider().kind
    if reset or wanted:
        before = model.read_limits(path, kind)
        model.write_limits(path, None if reset else before.model_copy(update=wanted))
    blast = Blast.of(session)
    now, lost = blast.look(session, blast.nodes)
    found = model.gauges(blast.limits, blast.nodes, now, now)
    data = {"limits": blast.limits.model_dump(mode="json"), "used": [one.data() for one in found],
            "silent": sorted(now.silent)}  # fmt: skip
    session.answer(data, "\n".join(_lines(blast.limits, found)))
    warn_all(lost, "; it counts as broken")
    return ExitCode.PASS


def _lines(limits: Limits, found: Sequence[Gauge]) -> list[str]:
    options = {name: value for name, value in limits.model_dump().items() if value is not None}
    rows = [(f"--{name.replace('_', '-')} {value}", "") for name, value in options.items()]
    return ["limits: " + " ".join(row[0] for row in rows), *limit_lines(found)]


def limit_lines(found: Sequence[Gauge]) -> list[str]:
    """The limits in force, one a line."""
    return labelled([(one.what, one.text()) for one in found]) or ["  nothing is limited now"]


@dataclass(frozen=True)
class Blast:
    """The limits of a lab, its nodes, and how much one injection would use."""

    limits: Limits
    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, session: Session) -> Blast:
        """Of the session's lab."""
        provider = session.provider()
        return cls(model.read_limits(session.limits_file, provider.kind), provider.nodes())

    @property
    def in_force(self) -> bool:
        """Whether anything is limited."""
        return self.limits.faults_per_node is not None or model.asks_everybody(self.limits, self.nodes)

    def look(self, session: Session, nodes: Sequence[Node]) -> tuple[Use, Mapping[str, LabctlError]]:
        """What is broken on these nodes now, and which of them did not answer."""
        with session.patience(f"counting the faults of {names_of(nodes)}"):
            answers = find_injections(session, nodes)
        live = {name: frozenset(one.id for one in found) for name, found in answers.good.items()}
        return Use(live, frozenset(answers.bad)), answers.bad

    def gauges(self, session: Session, injection_id: str, targets: Sequence[Node]) -> tuple[Gauge, ...]:
        """What this injection on these nodes makes of the limits, whether it stands already or not."""
        if not self.in_force:
            return ()
        asked = self.nodes if model.asks_everybody(self.limits, self.nodes) else tuple(targets)
        found, _ = self.look(session, asked)
        names = [node.name for node in targets]
        return model.gauges(self.limits, asked, found.without(injection_id), found.with_one(injection_id, names))


def refuse_exceeded(found: Sequence[Gauge], after: str) -> None:
    """Raises :class:`UsageError` naming the limits that are exceeded."""
    texts = [f"{one.what}: {one.text()}" for one in found if one.exceeded]
    if texts:
        text = f"limits: {some(texts, '; ')}" + (f" ({after})" if after else "")
        raise UsageError(text, "--exceed-limits plants it nevertheless; labctl limits shows and sets them")


COMMANDS = (limits_command,)
