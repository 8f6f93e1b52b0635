"""`labctl completion SHELL`: the script that makes a shell complete nodes, faults, injections and labs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from labctl.cli.base import LabCommand

PROGRAM = "labctl"
VARIABLE = "_LABCTL_COMPLETE"
"""The environment variable by which a shell asks for completions."""


@click.command("completion", cls=LabCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash   eval "$(labctl completion bash)"            in ~/.bashrc
    zsh    eval "$(labctl completion zsh)"             in ~/.zshrc
    fish   labctl completion fish | source             in ~/.config/fish/config.fish
    """
    maker = get_completion_class(shell)
    if maker is None:
        raise RuntimeError(f"click does not know {shell}")
    click.echo(maker(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())


COMMANDS = (completion,)
