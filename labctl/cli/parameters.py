"""The options of a fault, read from its JSON schema: the one view that help, `faults show` and parsing share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from pydantic.fields import FieldInfo

from labctl.cli.names import AnyFault
from node_agent.content import FORMAT, encode_content


class _Content(click.ParamType[str]):
    """A file of this machine, whose content is the parameter."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return encode_content(Path(value).read_bytes())
        except OSError as error:
            self.fail(f"{value} cannot be read: {error.strerror}", param, ctx)
        except ValueError as error:
            self.fail(f"{value}: {error}", param, ctx)


_CLICK_TYPES: Mapping[str, click.ParamType[Any]] = {
    "string": click.STRING,
    "boolean": click.BOOL,
    "file": _Content(),
}


NOTHING: Mapping[str, Any] = MappingProxyType({})
"""No parameters."""

STORAGE_LIMIT = 2**31
"""A larger maximum is about how a number is stored, and of no help to whoever types one."""


@dataclass(frozen=True)
class Parameter:
    """One field of a fault as a user sees it. Bounds are None where there is none."""

    name: str
    kind: str  # "integer", "number", "string", "boolean", "file": a file whose content is the value
    description: str
    required: bool
    default: Any
    many: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None  # none where it only bounds what the field can hold
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False

    @property
    def option(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    def range(self) -> str:
        """The allowed values in words; empty where anything goes."""
        if self.choices:
            return " | ".join(self.choices)
        low = "" if self.minimum is None else f"{'>' if self.exclusive_minimum else '>='} {_number(self.minimum)}"
        high = "" if self.maximum is None else f"{'<' if self.exclusive_maximum else '<='} {_number(self.maximum)}"
        return " and ".join(part for part in (low, high) if part)

    def shown_default(self) -> str:
        """The default in words; "required" where there is none."""
        if self.required:
            return "required"
        if self.name == "seed":
            return "random"
        if self.default is None or self.default in ([], ""):
            return "none"
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        if isinstance(self.default, list):
            return ", ".join(map(str, self.default))
        return str(self.default)


def parameters_of(fault: AnyFault) -> tuple[Parameter, ...]:
    """The parameters of a fault: required ones first, the seed last, otherwise in the order of the class."""
    schema = fault.model_json_schema()
    defs = schema.get("$defs", {})
    found = [_parameter(name, prop, fault.model_fields[name], defs) for name, prop in schema["properties"].items()]
    return tuple(sorted(found, key=lambda p: (p.name == "seed", not p.required)))


def with_presets(parameters: tuple[Parameter, ...], presets: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The parameters with other defaults, as an alias has them."""
    return tuple(
        replace(p, default=_plain(presets[p.name]), required=False) if p.name in presets else p for p in parameters
    )


def _parameter(name: str, prop: Mapping[str, Any], field: FieldInfo, defs: Mapping[str, Any]) -> Parameter:
    core = _core(prop, defs)
    many = core.get("type") == "array"
    if many:
        core = _core(core.get("items", {}), defs)
    choices = tuple(str(c) for c in core.get("enum", [core["const"]] if "const" in core else []))
    low, high = (
        core.get("exclusiveMinimum", core.get("minimum")),
        core.get("exclusiveMaximum", core.get("maximum")),
    )
    return Parameter(
        name=name,
        kind="file" if core.get("format") == FORMAT else str(core.get("type", "string")),
        description=str(prop.get("description", core.get("description", ""))),
        required=field.is_required(),
        default=None if field.is_required() else _plain(field.get_default(call_default_factory=True)),
        many=many,
        choices=choices,
        minimum=low,
        maximum=high if high is None or high < STORAGE_LIMIT else None,
        exclusive_minimum="exclusiveMinimum" in core,
        exclusive_maximum="exclusiveMaximum" in core,
    )


def _plain(default: Any) -> Any:
    """A default as a user would type it: a schedule is its text."""
    if isinstance(default, list | tuple | set | frozenset):
        return [_plain(item) for item in default]
    return default if default is None or isinstance(default, bool | int | float) else str(default)


def _core(prop: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of the value itself: behind a reference, and without the "or null" of an optional field."""
    if "$ref" in prop:
        return _core(defs[str(prop["$ref"]).rsplit("/", 1)[-1]], defs)
    variants = [v for v in prop.get("anyOf", ()) if v.get("type") != "null"]
    return _core(variants[0], defs) if len(variants) == 1 else prop


def option_for(parameter: Parameter) -> click.Option:
    """The click option of a parameter. Without a value it yields None: the model's own default then holds."""
    p = parameter
    help_text = p.description
    if p.kind == "boolean" and not p.many:
        declaration = f"{p.option}/--no-{p.option[2:]}" if p.default else p.option
        return click.Option([declaration, p.name], is_flag=True, default=None, help=_help(help_text, p))
    more: dict[str, Any] = {"required": True} if p.required else {"default": None}
    return click.Option([p.option, p.name], type=_click_type(p), multiple=p.many, help=_help(help_text, p), **more)


def _help(text: str, parameter: Parameter) -> str:
    many = "may be repeated" if parameter.many else ""
    default = "" if parameter.required else f"default: {parameter.shown_default()}"
    extra = "; ".join(part for part in (many, default) if part)
    return f"{text}  [{extra}]" if extra else text


def _click_type(p: Parameter) -> click.ParamType[Any]:
    if p.choices and p.kind == "string":
        return click.Choice(p.choices)
    bounds: dict[str, Any] = {
        "min": p.minimum,
        "max": p.maximum,
        "min_open": p.exclusive_minimum,
        "max_open": p.exclusive_maximum,
    }
    if p.kind == "integer":
        return click.IntRange(**bounds) if p.range() else click.INT
    if p.kind == "number":
        return click.FloatRange(**bounds) if p.range() else click.FLOAT
    return _CLICK_TYPES.get(p.kind, click.STRING)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def given_parameters(options: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """What the user gave, as the model takes it; options left out are left to the model."""
    names = {p.name for p in parameters}
    return {
        k: list(v) if isinstance(v, tuple) else v for k, v in options.items() if k in names and v not in (None, ())
    }


def example_lines(fault: AnyFault) -> list[str]:
    """The fault's own examples as they would be typed after `labctl inject`."""
    files = {p.name: "FILE" for p in parameters_of(fault) if p.kind == "file"}
    return [
        inject_line(fault.name, {name: files.get(name, value) for name, value in example.items()})
        for example in fault.examples
    ]


def inject_line(name: str, parameters: Mapping[str, Any]) -> str:
    """What would be typed after `labctl inject` for these parameters."""
    return shlex.join([name, "--node", "NODE", *option_words(parameters)])


def option_words(parameters: Mapping[str, Any]) -> list[str]:
    """Parameters as options and their values."""
    words: list[str] = []
    for name, value in parameters.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            for one in value if isinstance(value, list | tuple) else (value,):
                words += [option, str(one)]
    return words
