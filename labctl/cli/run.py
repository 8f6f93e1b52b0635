"""`labctl run`: one episode of a problem, from a healthy service to a verdict."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from labctl import paths
from labctl.cli.base import LabCommand, pass_session
from labctl.cli.session import Session
from labctl.errors import ExitCode, UnsupportedError, UsageError
from labctl.lab.model import Node
from labctl.run.problem import Noise, Surface
from labctl.run.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from labctl.hardware.keeper import Keeper
    from labctl.run.hardware_actions import Machines

EXIT: Mapping[Outcome, ExitCode] = {
    Outcome.PASS: ExitCode.PASS, Outcome.FAIL: ExitCode.FAIL, Outcome.UNKNOWN: ExitCode.UNKNOWN
}  # fmt: skip


class LabSite:
    """See :class:`labctl.run.perform.Site`: the lab of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.lab = session.lab

    @property
    def lock(self) -> Path:
        """Beside the lab's limits; it goes with the lab."""
        return self._session.limits_file.with_name("run.lock")

    def nodes(self) -> tuple[Node, ...]:
        return self._session.provider().nodes()

    def keeper(self, node: Node) -> Keeper:
        return self._session.injections(node)

    def machines(self, keepers: Mapping[str, Keeper], boot_id: Callable[[str], str]) -> Machines:
        from labctl.lab.qemu import QemuLab
        from labctl.run.machines import QemuMachines

        provider = self._session.provider()
        if not isinstance(provider, QemuLab):
            raise UnsupportedError(
                f"problems need machines that can be broken and taken back; lab {self.lab} has provider "
                f"{provider.kind}", "labctl up --lab NAME --workload booking"
            )  # fmt: skip
        return QemuMachines(provider, keepers, self.ready, boot_id)

    def ready(self, node: Node) -> None:
        self._session.tools.ready(self.lab)(node)

    def reset(self) -> None:
        self._session.provider().reset(self._session.tools.ready(self.lab), self._session.progress)

    def url(self) -> str:
        return next((one.web for one in self._session.provider().status() if one.web), "")

    def workload(self) -> str:
        from labctl.lab.qemu import QemuLab
        from labctl.lab.state import read_record

        provider = self._session.provider()
        record = read_record(provider.directory / "lab.json") if isinstance(provider, QemuLab) else None
        return record.options.workload if record else ""


def timing_options(hold: int, soak: int) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """`--hold` and `--soak`: how long it has to be well, and for how many seconds where nothing is said."""

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        for option in (
            click.option("--soak", "soak_s", type=click.FloatRange(5, 3600), metavar="S",
                         help=f"How long the repaired service has to stay well.  [default: {soak}]"),
            click.option("--hold", "hold_s", type=click.FloatRange(5, 3600), metavar="S",
                         help=f"How long it is watched at the gate and after the challenge.  [default: {hold}]"),
        ):  # fmt: skip
            command = option(command)
        return command

    return decorate


@click.command("run", cls=LabCommand)
@click.argument("problem")
@click.option(
    "--solver",
    default="reference",
    show_default=True,
    metavar="WHO",
    help="reference, alternative, decoy:N, none, manual, or a command line to run in the solver's directory.",
)
@click.option(
    "--noise",
    type=click.Choice(get_args(Noise)),
    help="What goes on beside the problem.  [default: the problem's]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), metavar="N", help="Decides load and noise.  [default: drawn]"
)
@click.option(
    "--surface", type=click.Choice(get_args(Surface)), help="What the solver may use.  [default: the problem's]"
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(1, 24 * 3600),
    metavar="S",
    help="The solver's time in seconds.  [default: the problem's, 1800]",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the record goes; must not be there yet.",
)
@click.option("--no-reset", is_flag=True, help="Take the lab as it is, and not to its snapshot first.")
@timing_options(hold=30, soak=60)
@pass_session
def run(
    session: Session, /, *, problem: str, solver: str, seed: int | None, record: Path | None, no_reset: bool,
    hold_s: float | None, soak_s: float | None, **given: Any
) -> int:  # fmt: skip
    """Run a problem: gate, plant, solve, soak, challenge, verdict.

    Exit status: 0 pass, 1 fail, 2 unknown (nothing can be said of the solver).
    """
    from labctl.run.catalogue import catalogue
    from labctl.run.episode import Timing
    from labctl.run.perform import Request, perform
    from labctl.run.words import told, verdict_data, verdict_text

    known = catalogue()
    found = known.find(problem)
    seed = secrets.randbelow(2**31) if seed is None else seed
    record = record or new_record(problem)
    request = Request(
        problem=found, solver=solver, seed=seed, record=record, catalogue=str(known), reset=not no_reset,
        timing=Timing().holding(hold_s, soak_s), **given,
    )  # fmt: skip

    def tell(kind: str, data: dict[str, object]) -> None:
        text = told(kind, data, spoil=solver != "manual")
        if text and not session.json:
            print(text, file=sys.stderr, flush=True)

    verdict = perform(request, LabSite(session), tell)
    data = {"problem": problem, "solver": solver, "seed": seed, "record": str(record), **verdict_data(verdict)}
    session.answer(data, f"{verdict_text(verdict)}\nrecord: {record}")
    return exit_of(verdict)


def exit_of(verdict: Verdict) -> ExitCode:
    """The exit status of a verdict."""
    return EXIT[verdict.outcome]


def new_record(problem: str) -> Path:
    """A directory that is not there yet, among the user's runs."""
    home = paths.state_dir() / "runs"
    number = 1 + sum(1 for _ in home.glob(f"{problem}-*")) if home.exists() else 1
    while (found := home / f"{problem}-{number:03}").exists():
        number += 1
    if number > 1_000_000:
        raise UsageError(f"{home} is full", "--record DIR")
    return found


COMMANDS = (run,)
