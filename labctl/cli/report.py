"""`labctl report`: what runs add up to, from their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.session import Session, show
from labctl.errors import ExitCode, LabError, UsageError
from labctl.lab.files import write_atomic

if TYPE_CHECKING:  # faults, models and plots are for this command, not for --help
    from labctl.report.runs.report import Report

Format = Literal["table", "json", "csv", "html"]
_BY_SUFFIX: Mapping[str, Format] = {".json": "json", ".csv": "csv", ".html": "html", ".htm": "html"}


@click.command("report", cls=LabCommand)
@click.argument("records", nargs=-1, required=True, metavar="RECORDS...", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["table", "json", "csv", "html"]),
              help="[default: by the name of --out, or table]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it to a file.")
@pass_session
def report(session: Session, records: Sequence[Path], form: Format | None, out: Path | None) -> int:
    """Scores of runs, with intervals, and how each run went.

    RECORDS are directories of runs, or directories that hold such. What is void, cut short or damaged is in no
    rate and is named. Ends with 2 where no record could be read.
    """
    from labctl.report.runs.reading import read_all
    from labctl.report.runs.report import report_of
    from labctl.run.catalogue import catalogue

    form = form or ("json" if session.json else _BY_SUFFIX.get(out.suffix if out else "", "table"))
    problems = catalogue()
    with session.patience("reading the records"):
        views, damaged = read_all(found_below(records), problems.problems.get)
        found = report_of(views, damaged, {problems.revision: len(problems.problems)})
        text = written(found)[form]() if form != "table" or out else None
    if out:
        _write(out, text or "")
        session.answer({"file": str(out), "runs": len(views)}, f"{len(views)} runs reported in {out}")
    elif text is None:
        from labctl.report.runs.tables import terminal

        show(terminal(found))
    else:
        click.echo(text, nl=False)
    if damaged and not views:
        return ExitCode.UNKNOWN
    return ExitCode.PASS


def found_below(paths: Sequence[Path]) -> list[Path]:
    """The records among these directories and right below them, each once.

    A directory that is none and holds none is left in the list: it is told that it cannot be read. Raises
    :class:`UsageError` for one that is not there.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(
                f"RECORDS: {path} is no directory", "give the directories of runs, or the one they are in"
            )
        below = [] if _is_record(path) else sorted(p for p in path.iterdir() if p.is_dir() and _is_record(p))
        found |= dict.fromkeys(below or [path])
    return list(found)


def _is_record(path: Path) -> bool:
    return any((path / name).exists() for name in ("run.json", "events.jsonl", "verdict.json"))


def written(found: Report) -> Mapping[str, Callable[[], str]]:
    """The ways to write a report."""
    from labctl.report.runs.page import page
    from labctl.report.runs.report import as_csv, as_json
    from labctl.report.runs.tables import plain

    return {
        "table": lambda: plain(found), "json": lambda: as_json(found), "csv": lambda: as_csv(found),
        "html": lambda: page(found),
    }  # fmt: skip


def _write(out: Path, text: str) -> None:
    try:
        write_atomic(out, text.encode(), mode=0o644)
    except OSError as error:
        raise LabError(f"{out} cannot be written: {error.strerror}", "name another file") from None


COMMANDS = (report,)
