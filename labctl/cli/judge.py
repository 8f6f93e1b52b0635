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
@click.option(
    "--diagnosis-model",
    "model",
    metavar="MODEL",
    envvar="GROUNDFAULT_DIAGNOSIS_MODEL",
    show_envvar=True,
    help="Also have a language model read the diagnosis: LiteLLM's name of it, such as ollama/llama3.",
)
@click.option("--ask-again", is_flag=True, help="Ask the model anew, though its answer is in the record.")
@pass_session
def judge(session: Session, record: Path, model: str | None, ask_again: bool) -> int:
    """Judge a record again, without a lab.

    It is judged from what its oracles saw, and compared with the verdict that it has.

    What a model says of the diagnosis is told apart and kept in the record; it changes no verdict, no exit status.

    Exit status: 0 pass, 1 fail, 2 unknown; 70 where it is another verdict than the one in the record.
    """
    from labctl.run.again import judge_again
    from labctl.run.catalogue import catalogue
    from labctl.run.diagnosis_judge import judge_diagnosis
    from labctl.run.words import judged_text, verdict_data, verdict_text

    problems = catalogue()
    found = judge_again(record, problems)
    lines = [verdict_text(found.verdict)]
    if not found.same_revision:
        lines.append(f"the run had problems {found.revision}; judged by {found.today}")
    lines += [f"not as in the record: {one}" for one in found.differences]
    if not found.differences:
        lines.append("the same verdict as in the record")
    read = None
    if model:
        with session.patience(f"asking {model}"):
            read = judge_diagnosis(record, model, problems.find(found.problem), again=ask_again)
        lines.append(judged_text(read))
    data = {
        "problem": found.problem, "revision": found.revision, "today": found.today,
        "diagnosis_judge": read.model_dump(mode="json") if read else None,
        "differences": list(found.differences), **verdict_data(found.verdict),
    }  # fmt: skip
    session.answer(data, "\n".join(lines))
    return ExitCode.LAB_BROKE if found.differences else exit_of(found.verdict)


COMMANDS = (judge,)
