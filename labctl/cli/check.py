"""`labctl check`: what a problem proves about itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group

from labctl import paths
from labctl.cli.base import LabCommand, pass_session
from labctl.cli.run import LabSite, timing_options
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.report.text import PlainTable

if TYPE_CHECKING:
    from labctl.run.catalogue import Catalogue
    from labctl.run.checking import Checked, Found, Results
    from labctl.run.proving import Prover

_MARKS: Mapping[str, str] = {"yes": "ok", "no": "NO", "unknown": "?"}


@click.command("check", cls=LabCommand)
@click.argument("problems", nargs=-1, metavar="[PROBLEM]...")
@click.option("--all", "everything", is_flag=True, help="All problems.")
@click.option(
    "--pick", type=click.IntRange(1, 100), metavar="N", help="N problems in turn, by --seed (such as the day)."
)
@click.option(
    "--only",
    multiple=True,
    metavar="CLAIM",
    help="Only papers, nothing, tells, reference, lost, alternative, decoy or decoy:N; may be repeated.",
)
@click.option("--again", is_flag=True, help="Also what was checked before and has not changed.")
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=4, show_default=True, help="Of load and noise, and of --pick."
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where results are kept.  [default: among the user's labs]",
)
@timing_options(hold=20, soak=45)
@pass_session
def check(
    session: Session, /, *, problems: Sequence[str], everything: bool, pick: int | None, only: Sequence[str],
    again: bool, seed: int, results: Path | None, hold_s: float | None, soak_s: float | None,
) -> int:  # fmt: skip
    """Check what problems prove about themselves.

    They can be passed, and only by repairing what is wrong.

    Goes on where an earlier check ended; what has not changed since is not run again. Exit status: 0 where all
    holds, 1 where something does not, 2 where something is not known.
    """
    from labctl.run.catalogue import catalogue
    from labctl.run.checking import Results
    from labctl.run.proving import CHECK_TIMING, Prover

    known = catalogue()
    names = _names(known, problems, everything=everything, pick=pick, seed=seed)
    _check_only(only)
    kept = Results(results or paths.state_dir() / "checks" / "results.json")
    timing = CHECK_TIMING.holding(hold_s, soak_s)
    prover = Prover(LabSite(session), known, paths.state_dir() / "checks", timing, seed, _teller(session))
    done = {name: _check(session, prover, kept, name, only, again=again) for name in names}
    session.answer(_data(known, done), _table(known, done))
    return _exit(known, done)


def _check(
    session: Session, prover: Prover, kept: Results, name: str, only: Sequence[str], *, again: bool
) -> Checked:
    """Check what is to be checked of one problem, and keep each result as it comes."""
    from labctl.run.checking import Checked, wanted

    problems = prover.problems
    mine = kept.read().get(name, Checked(problem=name))
    claims = wanted(problems.find(name), mine, problems.revision_of(name), only, again=again)
    for found in prover.check(name, claims):
        mine = kept.put(name, found)
        if not session.json:
            print(f"{name}: {_line(found)}", file=sys.stderr, flush=True)
    return mine


def _names(
    known: Catalogue, given: Sequence[str], *, everything: bool, pick: int | None, seed: int
) -> tuple[str, ...]:
    from labctl.run.proving import pick as picked

    if sum((bool(given), everything, pick is not None)) != 1:
        raise UsageError("check: which problems?", "names, or --all, or --pick N")
    if given:
        return tuple(known.find(name).name for name in given)
    return tuple(known.problems) if pick is None else picked(known, pick, seed)


def _check_only(only: Sequence[str]) -> None:
    from labctl.run.checking import CLAIMS

    for claim in only:
        if claim.partition(":")[0] not in CLAIMS:
            raise UsageError(f"--only: {claim!r} is no claim", f"one of: {', '.join(CLAIMS)}")


def _teller(session: Session) -> Callable[[str, dict[str, object]], None]:
    from labctl.run.words import told

    def tell(kind: str, data: dict[str, object]) -> None:
        text = told(kind, data, spoil=True)
        if text and not session.json:
            print(f"    {text}", file=sys.stderr, flush=True)

    return tell


def _line(found: Found) -> str:
    why = f": {found.why}" if found.why else ""
    return f"{found.claim} {_MARKS[found.answer]}{why} ({found.took_s:.0f} s)"


def _current(known: Catalogue, name: str, checked: Checked) -> dict[str, Found | None]:
    """Each claim of a problem, and its result where there is one that counts."""
    from labctl.run.checking import claims_of

    revision = known.revision_of(name)
    found = {claim: checked.found.get(claim) for claim in claims_of(known.find(name))}
    return {claim: one if one is not None and one.revision == revision else None for claim, one in found.items()}


def _table(known: Catalogue, done: Mapping[str, Checked]) -> Group:
    columns = ("papers", "reference", "lost", "nothing", "tells", "alternative", "decoys")
    rows, wrong = [], []
    for name, checked in done.items():
        found = _current(known, name, checked)
        cells = {claim: _MARKS[one.answer] if one else "-" for claim, one in found.items()}
        decoys = [mark for claim, mark in cells.items() if claim.startswith("decoy")]
        held = f"{decoys.count(_MARKS['yes'])} of {len(decoys)}"
        rows.append([name, *(cells.get(column, "") for column in columns[:-1]), held])
        wrong += [f"{name}: {_line(one)}" for one in found.values() if one and one.answer != "yes"]
    table = PlainTable(("PROBLEM", *(column.upper() for column in columns)), rows)
    return Group(table, *wrong, f"problems {known}")


def _data(known: Catalogue, done: Mapping[str, Checked]) -> dict[str, object]:
    found = {name: _current(known, name, checked) for name, checked in done.items()}
    return {
        "catalogue": known.revision,
        "count": len(known.problems),
        "problems": {
            name: {claim: one.model_dump(mode="json") if one else None for claim, one in mine.items()}
            for name, mine in found.items()
        },
    }


def _exit(known: Catalogue, done: Mapping[str, Checked]) -> ExitCode:
    answers = [one.answer if one else "unknown" for name, checked in done.items()
               for one in _current(known, name, checked).values()]  # fmt: skip
    if "no" in answers:
        return ExitCode.FAIL
    return ExitCode.UNKNOWN if "unknown" in answers else ExitCode.PASS


COMMANDS = (check,)
