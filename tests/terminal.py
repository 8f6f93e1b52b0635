"""Typing at a terminal: the commands of a page, as they stand there, with answers to what is asked."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of every block of a page."""
    return _BLOCK.findall((DOCS / page).read_text())


@dataclass(frozen=True)
class Shown:
    """A block: the files that it shows by `$ cat NAME`, and the other commands, without their comments."""

    files: Mapping[str, str]
    commands: tuple[str, ...]


def shown(text: str) -> Shown:
    """Take a block apart."""
    files: dict[str, str] = {}
    commands, at = [], ""
    for line in text.splitlines():
        if line.startswith("$ cat ") and "|" not in line:
            at = line.removeprefix("$ cat ").strip()
            files[at] = ""
        elif line.startswith("$ "):
            at = ""
            commands.append(re.sub(r"\s{2,}#.*$", "", line.removeprefix("$ ")).strip())
        elif at:
            files[at] += line + "\n"
    return Shown(files, tuple(commands))


def desk(home: Path, cache: Path) -> dict[str, str]:
    """The environment of an operator with a home of their own, and labctl on the path."""
    program = home / "bin" / "labctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m labctl "$@"\n')
    program.chmod(0o755)
    return {
        "HOME": str(home),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "XDG_CACHE_HOME": str(cache),
        "TERM": "dumb",
        "COLUMNS": "200",
    }


def typed(
    commands: tuple[str, ...], answers: Mapping[str, str], env: Mapping[str, str], directory: Path, within_s: float
) -> tuple[int, str]:
    """Type commands in one shell at a terminal; it ends with the first that fails. Its status, and all it showed.

    `answers`: what is typed when a text appears, each time it does.
    """
    script = directory / "typed.sh"
    lines = [f"printf '\\n$ %s\\n' {_quoted(command)}\n{command}" for command in commands]
    script.write_text("set -e\n" + "\n".join(lines) + "\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ("bash", str(script)), stdin=theirs, stdout=theirs, stderr=theirs, env=dict(env), cwd=directory,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        text = _answered(ours, answers, time.monotonic() + within_s)
        return process.wait(timeout=30), text
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _answered(ours: int, answers: Mapping[str, str], deadline: float) -> str:
    said, looked = "", 0
    while True:
        ready, _, _ = select.select([ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"not done in time:\n{said[-3000:]}"
        try:
            new = os.read(ours, 65536)
        except OSError:  # EIO: nobody has the other end open any more
            return said
        if not new:
            return said
        said += new.decode(errors="replace")
        # What waits for an answer is in the last line, and that is not a command which has the same words in it.
        last = said.rfind("\n") + 1
        for question, answer in answers.items():
            if last >= looked and question in said[last:] and not said.startswith("$ ", last):
                looked = len(said)
                os.write(ours, f"{answer}\n".encode())
