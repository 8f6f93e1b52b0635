"""`labctl`: finds the commands in this package, runs one, and turns what went wrong into one line and a code."""

from __future__ import annotations

import importlib
import json
import pkgutil
import signal
import sys
from collections.abc import Mapping, Sequence

import click

from labctl import cli as commands_package
from labctl.cli.base import LabGroup, UnknownNameError, commands_in
from labctl.cli.completion import PROGRAM, VARIABLE
from labctl.cli.fleet import NAMED
from labctl.cli.session import Session
from labctl.cli.world import RealTools
from labctl.errors import ExitCode, LabctlError
from labctl.interrupt import as_interrupt
from node_agent.version import VERSION

INTERRUPTED = 130


class _Root(LabGroup):
    is_root = True


def build_cli() -> click.Group:
    """The root command with every command of every module of this package."""
    root = _Root(
        PROGRAM,
        help="Plant real faults in real nodes, watch them bite, and take them back.",
        params=[click.Option(["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version,
                             help="Show the version and exit.")],
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )  # fmt: skip
    for info in sorted(pkgutil.iter_modules(commands_package.__path__), key=lambda i: i.name):
        for command in commands_in(importlib.import_module(f"{commands_package.__name__}.{info.name}")):
            root.add_command(command)
    return root


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"labctl {VERSION}")
        ctx.exit()


def main(argv: Sequence[str] | None = None, session: Session | None = None) -> int:
    """Run one command line and return the exit code (design, section 9). Bugs leave as exceptions."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    session = session or Session(RealTools())
    try:
        with as_interrupt(signal.SIGTERM):
            code = build_cli().main(
                arguments,
                prog_name=PROGRAM,
                complete_var=VARIABLE,
                standalone_mode=False,
                obj=session,
            )
    except LabctlError as error:
        hint = session.for_this_lab(error.hint)
        return _report(error.message, hint, int(error.exit_code), session.json, error.nodes)
    except click.UsageError as error:
        hint = error.hint if isinstance(error, UnknownNameError) else _usage_hint(error)
        return _report(error.format_message(), hint, ExitCode.USAGE, session.json or wants_json(arguments))
    except click.ClickException as error:
        return _report(error.format_message(), "", ExitCode.USAGE, session.json)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    finally:
        session.close()
    return int(code or 0)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether --json stands on a line that could not be parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def _usage_hint(error: click.UsageError) -> str:
    return f"see: {error.ctx.command_path} --help" if error.ctx else ""


def _report(message: str, hint: str, code: int, as_json: bool, nodes: Mapping[str, str] | None = None) -> int:
    if as_json:
        data = {"error": message, "hint": hint, "exit_code": int(code)} | ({"nodes": dict(nodes)} if nodes else {})
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo(f"error: {message}", err=True)
        if nodes and len(nodes) > NAMED:
            click.echo(f"all {len(nodes)} nodes: {' '.join(nodes)}", err=True)
        if hint:
            click.echo(f"hint: {hint}", err=True)
    return int(code)
