"""The shape of every command: global options on either side of the command word, and errors that help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from labctl.cli.session import ENV_LAB, Session
from labctl.errors import ExitCode
from labctl.nearest import nearest

pass_session = click.make_pass_decorator(Session)
F = TypeVar("F", bound=Callable[..., Any])


def session_of(ctx: click.Context) -> Session:
    """The session of this run."""
    session = ctx.find_object(Session)
    if session is None:
        raise RuntimeError("a command was started without a session")
    return session


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value not in (None, False):
            setattr(session_of(ctx), name, value)
        return value

    return callback


def _complete_lab(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in session_of(ctx).tools.list_labs() if name.startswith(incomplete)]


def global_options(*, root: bool = False) -> list[click.Parameter]:
    """`--lab`, `--transport`, `--json`. Only the root reads the environment, so that the line always wins."""
    return [
        click.Option(
            ["--lab"],
            metavar="NAME",
            envvar=ENV_LAB if root else None,
            help=f"Lab to work on.  [env: {ENV_LAB}; default: default]",
            callback=_store("lab"),
            expose_value=False,
            is_eager=True,
            shell_complete=_complete_lab,
        ),
        click.Option(
            ["--transport"],
            type=click.Choice(["grpc", "ssh"]),
            help="How to reach the agents.  [default: grpc, or what the inventory says]",
            callback=_store("transport"),
            expose_value=False,
            is_eager=True,
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            help="Answer in JSON on standard output; no progress.",
            callback=_store("json"),
            expose_value=False,
            is_eager=True,
        ),
    ]


_GENERAL = frozenset(("--lab", "--transport", "--json", "--help"))


class _Globals(click.Command):
    """Gives a command the global options, shown under their own heading."""

    is_root = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        return [*own[:-1], *global_options(root=self.is_root), *own[-1:]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                rows[bool(_GENERAL.intersection(param.opts))].append(record)
        for is_general, title in ((False, "Options"), (True, "Global options")):
            if rows[is_general]:
                with formatter.section(title):
                    formatter.write_dl(rows[is_general])
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class LabCommand(_Globals):
    """A command that takes the global options too. Its function returns an exit code, or None for 0."""


class LabGroup(_Globals, click.Group):
    """A group of such commands."""

    command_class = LabCommand
    group_class = type
    noun = "command"

    def known_names(self, ctx: click.Context) -> list[str]:
        """Names to choose the nearest from."""
        return self.list_commands(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a word there is nothing to do: show the help and end as a usage error."""
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, but the nearest names come from :meth:`known_names`, so that made commands count."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            hint = nearest(name, self.known_names(ctx), f"{self.noun}s")
            raise UnknownNameError(f"there is no {self.noun} called {name!r}", hint, ctx)
        return super().resolve_command(ctx, args)


class UnknownNameError(click.UsageError):
    """A name that is not among the known ones; the hint is the nearest, or the list."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None = None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def commands_in(module: Any) -> Iterator[click.Command]:
    """The commands that a module of this package offers in its `COMMANDS`."""
    yield from getattr(module, "COMMANDS", ())
