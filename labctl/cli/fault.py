"""`labctl faults`: the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType

from labctl.cli.base import LabGroup, UnknownNameError, pass_session
from labctl.cli.names import AnyFault, all_aliases, built_aliases, known_faults, pending_aliases, resolve_name
from labctl.cli.parameters import (
    NOTHING,
    Parameter,
    example_lines,
    inject_line,
    parameters_of,
    with_presets,
)
from labctl.cli.schedules import FIELD as SCHEDULE
from labctl.cli.schedules import short_forms
from labctl.cli.session import Session
from labctl.nearest import nearest
from labctl.report.text import PlainTable, labelled
from node_agent import aliases
from node_agent.catalog import catalog


def _complete_faults(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in [*known_faults(), *built_aliases()] if name.startswith(incomplete)]


@click.group("faults", cls=LabGroup, invoke_without_command=True)
@click.pass_context
@pass_session
def faults(session: Session, ctx: click.Context) -> None:
    """List the faults there are; `show NAME` tells all about one."""
    if ctx.invoked_subcommand is None:
        list_faults(session)


@faults.command("list")
@pass_session
def list_command(session: Session) -> None:
    """List the faults there are, with their other names.

    The other names are those of the injector that SRE benchmarks use.
    """
    list_faults(session)


def list_faults(session: Session) -> None:
    """The catalogue and the aliases, those of faults that are not built yet apart."""
    found = known_faults()
    data = [
        {"name": name, "summary": one.summary, "operator_sees": one.operator_sees, "reversible": one.reversible}
        for name, one in found.items()
    ]
    rows = [(name, one.summary) for name, one in found.items()]
    parts: list[RenderableType] = [PlainTable(("FAULT", "WHAT HAPPENS"), rows)]
    for title, names in (("OTHER NAMES OF", built_aliases()), ("NOT BUILT YET", pending_aliases())):
        if names:
            parts += ["", PlainTable((title, "NAMES"), _by_fault(names))]
    session.answer({"faults": data, "aliases": [_alias_data(name) for name in all_aliases()]}, Group(*parts))


def _by_fault(names: Sequence[str]) -> list[tuple[str, str]]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(aliases.ALIASES[name].fault, []).append(name)
    return [(fault, ", ".join(group)) for fault, group in sorted(grouped.items())]


def _alias_data(name: str) -> dict[str, Any]:
    alias = aliases.ALIASES[name]
    return {
        "name": name,
        "fault": alias.fault,
        "parameters": dict(alias.presets),
        "promise": alias.promise,
        "limits": alias.limits,
        "pending": alias.fault not in catalog(),
    }


@faults.command("show")
@click.argument("name", shell_complete=_complete_faults)
@pass_session
@click.pass_context
def show(ctx: click.Context, session: Session, name: str) -> None:
    """Parameters, ranges and defaults of one fault.

    Of another name of a fault also what it stands for; ends with 3 where that is not built yet. With --json also
    the JSON schema of its parameters.
    """
    name = name.replace("-", "_")
    if name not in known_faults() and name not in aliases.ALIASES:
        known = [*known_faults(), *built_aliases()]
        raise UnknownNameError(f"there is no fault called {name!r}", nearest(name, known, "faults"), ctx)
    fault, presets = resolve_name(name)
    alias = name if name not in known_faults() else ""
    data = schema_of(fault, presets) | ({"alias": _alias_data(alias)} if alias else {})
    session.answer(data, describe(fault, session, alias, presets))


def schema_of(fault: AnyFault, presets: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """Everything about a fault, with the JSON schema of its parameters."""
    return {
        "name": fault.name,
        "summary": fault.summary,
        "operator_sees": fault.operator_sees,
        "reversible": fault.reversible,
        "examples": [dict(example) for example in fault.examples],
        "schema": _schema(fault, presets),
    }


def _schema(fault: AnyFault, presets: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of the parameters, with defaults as they would be typed."""
    schema = fault.model_json_schema()
    for parameter in with_presets(parameters_of(fault), presets):
        if not parameter.required:
            schema["properties"][parameter.name]["default"] = parameter.default
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in presets]
    return schema


def _alias_lines(name: str, session: Session) -> list[str]:
    alias = aliases.ALIASES[name]
    rows = [
        ("the same as", session.command(f"inject {inject_line(alias.fault, alias.presets)}")),
        ("limits", alias.limits),
    ]
    return [f"{name}: {alias.promise}; stands for {alias.fault}", *labelled(rows, width=session.width), ""]


def describe(fault: AnyFault, session: Session, alias: str = "", presets: Mapping[str, Any] = NOTHING) -> str:
    """The page about a fault; under an alias with what that stands for, and its presets as defaults."""
    rows = [("operator sees", fault.operator_sees), ("reversible", fault.reversible)]
    parameters = with_presets(parameters_of(fault), presets)
    examples = [("example", session.command(f"inject {line}")) for line in example_lines(fault)]
    lines = [
        *(_alias_lines(alias, session) if alias else ()),
        f"{fault.name}: {fault.summary}",
        *labelled([*rows, *examples], width=session.width),
        "",
        "Parameters",
    ]
    for parameter in parameters:
        lines += ["", *parameter_lines(parameter)]
        if parameter.name == SCHEDULE:
            short = " ".join(f"--{kind} {value}" for kind, value in short_forms(fault))
            lines += [f"      or in short: {short}"] if short else []
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
