"""`--ratio 1/3` for `--schedule ratio:1/3`, and so on, for every fault that has a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from pydantic import ValidationError

from labctl.cli.names import AnyFault
from labctl.errors import UsageError
from node_agent.schedule import FORMS, Kind, parse_schedule

FIELD = "schedule"
"""The field of a fault that these options set."""

_FORMS: Mapping[Kind, tuple[str, str, str]] = {
    "ratio": ("A/B", "1/2", "Bite exactly A of every B times"),
    "probability": ("P", "0.5", "Bite each time with probability P"),
    "every": ("K", "2", "Bite each K-th time"),
    "after": ("N", "1", "Bite all but the first N times"),
    "first": ("N", "1", "Bite the first N times only"),
    "burst": ("ON/OFF", "1/1", "Bite for ON seconds, rest for OFF, and so on"),
}
"""What the value is called, one that is valid, and what it does."""


def _name(kind: Kind) -> str:
    return f"{FIELD}_{kind}"


def accepted_forms(fault: AnyFault) -> tuple[Kind, ...]:
    """The forms of schedule that this fault takes; none where it has no schedule."""
    if FIELD not in fault.model_fields:
        return ()
    return tuple(
        kind for kind, (_, valid, _) in _FORMS.items()
        if kind not in fault.model_fields and not _refuses(fault, f"{kind}:{valid}")
    )  # fmt: skip


def short_forms(fault: AnyFault) -> list[tuple[Kind, str]]:
    """The forms this fault takes, each with what its value is called."""
    return [(kind, _FORMS[kind][0]) for kind in accepted_forms(fault)]


def _refuses(fault: AnyFault, schedule: str) -> bool:
    try:
        fault.model_validate({FIELD: schedule})
    except ValidationError as error:
        return any(one["loc"][:1] == (FIELD,) for one in error.errors(include_url=False))
    return False


def schedule_options(fault: AnyFault) -> list[click.Option]:
    """One option a form, each a shorter word for `--schedule`."""
    return [
        click.Option(
            [f"--{kind}", _name(kind)], metavar=_FORMS[kind][0], callback=_parsed(kind),
            help=f"{_FORMS[kind][2]}; short for --schedule {kind}:{_FORMS[kind][0]}",
        )
        for kind in accepted_forms(fault)
    ]  # fmt: skip


def _parsed(kind: Kind) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            return str(parse_schedule(f"{kind}:{value.strip()}"))
        except ValueError:
            raise click.BadParameter(f"{value!r}; allowed: {FORMS[kind].partition(':')[2]}", ctx, param) from None

    return callback


def take_schedule(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """The option by which a schedule was given and the schedule. Raises :class:`UsageError` for two."""
    names = {"--schedule": FIELD, **{f"--{kind}": _name(kind) for kind in _FORMS}}
    given = [(option, options[name]) for option, name in names.items() if options.get(name) is not None]
    if len(given) > 1:
        both = " and ".join(option for option, _ in given)
        raise UsageError(f"{both} exclude each other", "a fault has one schedule: give one of them")
    return given[0] if given else None
