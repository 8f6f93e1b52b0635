"""The witness of system-call faults: a static C program that makes one chosen call and tells what it answered.

`calls list` prints `FAMILY ENTRY` lines. `calls run ENTRY` makes one call, `calls many ENTRY…` one each; both
prepare their objects first and print `ready`. `many`, and `run --wait`, then wait for a line on standard input, so
that a fault can be planted in between; they keep their objects until a second line or the end of the input. The
process that was started is the one that measures (a fault can be scoped to its pid); with `--cgroup DIR` it alone
joins that cgroup, while a second process does the printing. The answer is `ok`, `ok N` for a transfer, the name of
an errno or of a signal, or `TIMEOUT`. Exit codes: 0 measured, 3 could not (reason on standard error), 64 usage.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = ("gcc", "-std=gnu11", "-O1", "-static", "-pthread", "-Wall", "-Wextra")
_ENTRY = re.compile(r'^    \{"(\w+)", "([\w ]+)",', re.MULTILINE)


def sources() -> tuple[Path, ...]:
    return tuple(sorted(HERE.glob("*.c")))


def build(tmp: Path) -> Path:
    """The program in `tmp`, compiled unless it is there already; runs on any Linux of this architecture."""
    content = hashlib.sha256(" ".join(COMPILER).encode())
    for path in (*sources(), *sorted(HERE.glob("*.h"))):
        content.update(path.read_bytes())
    program = tmp / f"calls-{content.hexdigest()[:16]}"
    if not program.exists():
        tmp.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(f".{os.getpid()}")
        subprocess.run((*COMPILER, "-o", partial, *sources()), check=True)
        partial.replace(program)
    return program


def entries() -> dict[str, tuple[str, ...]]:
    """Every entry by family, read from the tables of the sources; an entry can be in more than one family."""
    families: dict[str, list[str]] = {}
    for source in sources():
        for name, member_of in _ENTRY.findall(source.read_text()):
            for family in member_of.split():
                families.setdefault(family, []).append(name)
    return {family: tuple(sorted(names)) for family, names in sorted(families.items())}


def answers(output: str) -> dict[str, str]:
    """What `calls many` printed: answer by entry; `UNABLE reason` for one that could not be prepared."""
    lines = (line.partition(" ") for line in output.splitlines() if line != "ready")
    return {name: answer for name, _, answer in lines}
