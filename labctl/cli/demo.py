"""`labctl demo`: the main job from beginning to end, by the commands a user would type, with what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.session import Session
from labctl.errors import LabError

NODE, FILE = "w2", "/srv/data/demo.bin"
STEP_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Scene:
    """One command of the demonstration: why, what to type, and what must come of it."""

    why: str
    argv: tuple[str, ...]
    expect: Callable[[int, str], str]
    """From exit status and output to a complaint; empty when it went as it must."""


def _works(status: int, output: str) -> str:
    return "" if status == 0 else f"it ended with status {status}"


def _fails_with_eio(status: int, output: str) -> str:
    if status != 0 and "Input/output error" in output:
        return ""
    return f"the read should have failed with an I/O error, but ended with status {status}"


def _shows(pattern: str) -> Callable[[int, str], str]:
    def check(status: int, output: str) -> str:
        found = status == 0 and re.search(pattern, output)
        return "" if found else f"the output should show {pattern!r} (status {status})"

    return check


def _on_node(*argv: str) -> tuple[str, ...]:
    return ("ssh", NODE, "--", *argv)


def scenes() -> tuple[Scene, ...]:
    """The demonstration, in order. The checksum is compared by :func:`play`."""
    return (
        Scene("Bring three virtual machines up", ("up",), _works),
        Scene(f"Some data on {NODE}",
              _on_node("dd", "if=/dev/urandom", f"of={FILE}", "bs=64k", "count=4", "conv=fsync"), _works),
        Scene("Its checksum", _on_node("sha256sum", FILE), _works),
        Scene("Make sectors of that file unreadable, for ten minutes at most",
              ("inject", "latent_sector_error", "--node", NODE, "--file", FILE, "--backend", "dm",
               "--for", "10m"), _works),
        Scene("The read fails, in any program", _on_node("cat", FILE), _fails_with_eio),
        Scene("The kernel says why", _on_node("dmesg", "--level", "err"), _shows("I/O error, dev .* sector")),
        Scene("What the agent counts", ("injections",), _shows("latent_sector_error")),
        Scene("Take it back", ("recover", "--all"), _works),
        Scene("The file is as it was", _on_node("sha256sum", FILE), _works),
        Scene("And nothing is left", ("node", "residue", NODE), _works),
    )  # fmt: skip


def play(lab: str, transport: str) -> None:
    """Run every scene with the user's own commands. Raises :class:`LabError` when one goes wrong."""
    sums: list[str] = []
    for scene in scenes():
        typed = shlex.join(("labctl", *(("--lab", lab) if lab != "default" else ()), *scene.argv))
        click.secho(f"\n# {scene.why}", fg="cyan")
        click.secho(f"$ {typed}", bold=True)
        status, output = _type(("--lab", lab, "--transport", transport, *scene.argv))
        complaint = scene.expect(status, output)
        if complaint:
            raise LabError(f"demo: {typed}: {complaint}", "labctl recover --all, labctl logs w2 --agent")
        if "sha256sum" in scene.argv:
            sums.append(output.split()[0])
    if len(set(sums)) != 1:
        raise LabError(f"demo: the checksum of {FILE} changed: {' and then '.join(sums)}")


def _type(arguments: Sequence[str]) -> tuple[int, str]:
    """Run labctl; its output is shown as it comes (what `cat` gets of a binary file is not) and returned."""
    command = (sys.executable, "-m", "labctl", *arguments)
    hidden = "cat" in arguments
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if hidden else None) as process:
        if hidden:
            out, err = process.communicate(timeout=STEP_LIMIT_S)
            text = err.decode(errors="replace")
            click.echo(text, nl=False)
            click.echo(f"({len(out)} bytes came before it)")
            return process.returncode, text
        lines = []
        assert process.stdout is not None
        for raw in process.stdout:
            lines.append(raw.decode(errors="replace"))
            click.echo(lines[-1], nl=False)
    return process.returncode, "".join(lines)


NEXT = """
Go on:
  labctl faults                         what can be planted
  labctl inject latent_sector_error --node w2 --plan
  labctl ssh w2                         look around
  labctl watch ID                       live counters
  labctl reset                          all nodes back to the golden snapshot, in seconds
  labctl down                           end the lab; labctl up brings it back
"""


@click.command("demo", cls=LabCommand)
@pass_session
def demo(session: Session) -> None:
    """Boot the lab, plant a bad sector, see it bite, heal it."""
    play(session.lab, session.transport or "grpc")
    click.secho("\nAll of it happened on a real kernel, and is healed.", fg="green")
    click.echo(NEXT, nl=False)


COMMANDS = (demo,)
