"""`labctl faults`: the catalogue."""

from __future__ import annotations

from typing import Any

import click

from labctl.cli.base import LabGroup, UnknownNameError, pass_session
from labctl.cli.parameters import Parameter, example_lines, parameters_of
from labctl.cli.session import Session, nearest
from labctl.report.text import PlainTable, labelled
from node_agent.catalog import catalog
from node_agent.fault import Fault


def _complete_faults(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in catalog() if name.startswith(incomplete)]


@click.group("faults", cls=LabGroup, invoke_without_command=True)
@click.pass_context
@pass_session
def faults(session: Session, ctx: click.Context) -> None:
    """List the faults there are; `show NAME` tells all about one."""
    if ctx.invoked_subcommand is not None:
        return
    found = catalog()
    data = [
        {"name": name, "summary": one.summary, "operator_sees": one.operator_sees, "reversible": one.reversible}
        for name, one in found.items()
    ]
    rows = [(name, one.summary) for name, one in found.items()]
    session.answer({"faults": data}, PlainTable(("FAULT", "WHAT HAPPENS"), rows))


@faults.command("show")
@click.argument("name", shell_complete=_complete_faults)
@pass_session
@click.pass_context
def show(ctx: click.Context, session: Session, name: str) -> None:
    """Parameters, ranges and defaults of one fault.

    With --json also the JSON schema of its parameters.
    """
    fault = catalog().get(name.replace("-", "_"))
    if fault is None:
        raise UnknownNameError(f"there is no fault called {name!r}", nearest(name, catalog(), "faults"), ctx)
    session.answer(schema_of(fault), describe(fault, session))


def schema_of(fault: type[Fault]) -> dict[str, Any]:
    """Everything about a fault, with the JSON schema of its parameters."""
    return {
        "name": fault.name,
        "summary": fault.summary,
        "operator_sees": fault.operator_sees,
        "reversible": fault.reversible,
        "examples": [dict(example) for example in fault.examples],
        "schema": _schema(fault),
    }


def _schema(fault: type[Fault]) -> dict[str, Any]:
    """The JSON schema of the parameters, with defaults as they would be typed."""
    schema = fault.model_json_schema()
    for parameter in parameters_of(fault):
        if not parameter.required:
            schema["properties"][parameter.name]["default"] = parameter.default
    return schema


def describe(fault: type[Fault], session: Session) -> str:
    """The page about a fault."""
    rows = [("operator sees", fault.operator_sees), ("reversible", fault.reversible)]
    parameters = parameters_of(fault)
    examples = [("example", session.command(f"inject {line}")) for line in example_lines(fault)]
    lines = [
        f"{fault.name}: {fault.summary}",
        *labelled([*rows, *examples], width=session.width),
        "",
        "Parameters",
    ]
    for parameter in parameters:
        lines += ["", *parameter_lines(parameter)]
    return "\n".join(lines)


def parameter_lines(parameter: Parameter) -> list[str]:
    """What `faults show` says of one parameter."""
    kind = f"list of {parameter.kind}" if parameter.many else parameter.kind
    facts = [("default", parameter.shown_default()), ("allowed", parameter.range())]
    head = "; ".join([kind, *(f"{label}: {text}" for label, text in facts if text)])
    return [
        f"  {parameter.option}  ({head})",
        *([f"      {parameter.description}"] if parameter.description else []),
    ]


COMMANDS = (faults,)
