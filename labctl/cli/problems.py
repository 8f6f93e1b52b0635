"""`labctl problems`: the catalogue of problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Group

from labctl.cli.base import LabGroup, pass_session
from labctl.cli.session import Session
from labctl.report.text import PlainTable

if TYPE_CHECKING:
    from labctl.run.problem import Problem, Script


@click.group("problems", cls=LabGroup, invoke_without_command=True)
@click.pass_context
@pass_session
def problems(session: Session, ctx: click.Context) -> None:
    """List the problems there are.

    `show NAME` tells what a solver is told of one.
    """
    if ctx.invoked_subcommand is None:
        list_problems(session)


@problems.command("list")
@pass_session
def list_command(session: Session) -> None:
    """List the problems, by what a solver sees of them."""
    list_problems(session)


def list_problems(session: Session) -> None:
    """The pool: its revision, its count, each problem in a line."""
    from labctl.run.catalogue import catalogue

    known = catalogue()
    rows = [(name, one.surface, one.workload, one.title) for name, one in known.problems.items()]
    data = [{"name": n, "surface": s, "workload": w, "title": t} for n, s, w, t in rows]
    table = PlainTable(("PROBLEM", "SURFACE", "WORKLOAD", ""), rows)
    session.answer(
        {"revision": known.revision, "count": len(rows), "problems": data}, Group(table, f"problems {known}")
    )


@problems.command("show")
@click.argument("name")
@click.option("--spoil", is_flag=True, help="Also the cause, the faults, the repairs and the decoys.")
@pass_session
def show(session: Session, name: str, spoil: bool) -> None:
    """Show what a solver is told of a problem. Its cause only with --spoil."""
    from labctl.run.catalogue import catalogue

    known = catalogue()
    found = known.find(name)
    data = {
        "name": name, "title": found.title, "statement": found.statement, "surface": found.surface,
        "workload": found.workload, "limit_s": found.limit_s, "revision": known.revision_of(name),
        "vocabulary": found.vocabulary.model_dump(mode="json"),
    }  # fmt: skip
    lines = [f"{name}: {found.title}", "", found.statement.strip(), "",
             f"surface {found.surface}, workload {found.workload}, {found.limit_s:.0f} s, "
             f"revision {data['revision']}"]  # fmt: skip
    if spoil:
        data |= {"spoiled": _spoiled(found)}
        lines += ["", *_spoiled_lines(found)]
    session.answer(data, "\n".join(lines))


def _spoiled(found: Problem) -> dict[str, Any]:
    return {
        "mode": found.mode, "root_cause": found.root_cause, "case": found.case,
        "cause": [triple.model_dump() for triple in sorted(found.cause, key=str)],
        "faults": [{"fault": f.name, "node": f.node, "at_s": f.at_s, "ends_after_s": f.ends_after_s,
                    "parameters": f.parameters} for f in found.faults],
        "oracles": [oracle.name for oracle in found.oracles], "permitted": list(found.permitted.changes),
        "reference": found.reference.title,
        "alternative": found.alternative.title if found.alternative else None,
        "decoys": [{"title": d.script.title, "fails_as": d.fails_as} for d in found.decoys],
    }  # fmt: skip


def _spoiled_lines(found: Problem) -> list[str]:
    scripts: list[tuple[str, Script]] = [("reference", found.reference)]
    if found.alternative:
        scripts.append(("alternative", found.alternative))
    return [
        f"cause ({found.mode}): {found.root_cause}",
        *(f"  {triple}" for triple in sorted(found.cause, key=str)),
        *(f"fault: {f.name} on {f.node} {dict(f.parameters)}" for f in found.faults),
        *(f"{kind}: {script.title}" for kind, script in scripts),
        *(f"decoy {n + 1}: {d.script.title}, fails as {d.fails_as}" for n, d in enumerate(found.decoys)),
        *((f"case: {found.case}",) if found.case else ()),
    ]


@problems.command("pairs")
@pass_session
def pairs(session: Session) -> None:
    """Show what could be planted, and how much of it problems have.

    Pairs of a fault and a target that the lab can make, by class.
    """
    from labctl.oracles.booking import ADDRESSES, UNITS
    from labctl.run.catalogue import catalogue
    from labctl.run.pairs import coverage

    known = catalogue()
    found = coverage(known.problems.values(), tuple(ADDRESSES), UNITS)
    rows = [[c.name, c.lands_on, str(c.faults), str(c.pairs), str(c.faults_used), str(c.curated)] for c in found]
    sums = [sum(getattr(c, name) for c in found) for name in ("faults", "pairs", "faults_used", "curated")]
    rows.append(["all", "", *(str(one) for one in sums)])
    table = PlainTable(("CLASS", "LANDS ON", "FAULTS", "PAIRS", "FAULTS IN PROBLEMS", "PAIRS IN PROBLEMS"), rows)
    data = {"revision": known.revision, "count": len(known.problems), "classes": [vars(c) for c in found]}
    session.answer(data, Group(table, f"problems {known}"))


COMMANDS = (problems,)
