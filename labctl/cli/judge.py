"""`labctl judge`: the verdict of a record, worked out again without a lab."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.run import exit_of
from labctl.cli.session import Session
from labctl.errors import ExitCode


@click.command("judge", cls=LabCommand)
@click.argument("record", type=click.Path(path_type=Path))
@pass_session
def judge(session: Session, record: Path) -> int:
    """Judge a record again from what its oracles saw, and compare with the verdict it has.

    Exit status: 0 pass, 1 fail, 2 unknown; 70 where it is another verdict than the one in the record.
    """
    from labctl.run.again import judge_again
    from labctl.run.catalogue import catalogue
    from labctl.run.words import verdict_data, verdict_text

    found = judge_again(record, catalogue())
    lines = [verdict_text(found.verdict)]
    if not found.same_revision:
        lines.append(f"the run had problems {found.revision}; judged by {found.today}")
    lines += [f"not as in the record: {one}" for one in found.differences]
    if not found.differences:
        lines.append("the same verdict as in the record")
    data = {
        "problem": found.problem, "revision": found.revision, "today": found.today,
        "differences": list(found.differences), **verdict_data(found.verdict),
    }  # fmt: skip
    session.answer(data, "\n".join(lines))
    return ExitCode.LAB_BROKE if found.differences else exit_of(found.verdict)


COMMANDS = (judge,)
