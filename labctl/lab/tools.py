"""Running other programs: bounded, ended when we are, and with their own words in the error."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from labctl.errors import LabError

# The Debian package that has a program, for the hint.
_PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "vde_switch": "vde2",
    "mke2fs": "e2fsprogs",
    "newuidmap": "uidmap",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "pahole": "dwarves",
    "xz": "xz-utils",
}


_SHOWN = 8
"""Lines of each end of what a failed program said."""


def need(*programs: str) -> None:
    """Raise a LabError that names the missing programs and the packages that have them."""
    missing = [program for program in programs if find(program) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES.get(program, program) for program in missing}))
        raise LabError(f"missing on this machine: {', '.join(missing)}", f"apt-get install {packages}")


def find(program: str) -> str | None:
    """The path of a program, also in the sbin directories that an ordinary user's PATH lacks."""
    return shutil.which(program) or shutil.which(program, path="/usr/local/sbin:/usr/sbin:/sbin")


def run(
    argv: Sequence[str], what: str, *, timeout: float, env: Mapping[str, str] | None = None, hint: str = ""
) -> str:
    """Run to the end and return standard output; a failure or an overrun is a LabError about `what`.

    Whatever ends the wait (an error, Ctrl-C) also ends the program and all it started, with time to clean up.
    """
    program = find(argv[0]) if "/" not in argv[0] else argv[0]
    # Files and not pipes: a program that outlives a killed labctl can go on writing, and so end in good order.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [program or argv[0], *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(env) if env is not None else None,
            process_group=0,
        )
        try:
            process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise LabError(f"{what}: not done after {timeout:.0f} s", hint) from None
        finally:
            _end(process)
        said, complained = _text(out), _text(err)
    if process.returncode != 0:
        words = _ends(complained.strip() or said.strip())
        raise LabError(f"{what}: {Path(argv[0]).name} ended with {process.returncode}", hint or words)
    return said


def _ends(text: str) -> str:
    """Its first and last lines: some programs say first what is wrong and then where, others the reverse."""
    lines = text.splitlines()
    return text if len(lines) <= 2 * _SHOWN else "\n".join((*lines[:_SHOWN], "...", *lines[-_SHOWN:]))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process group as Ctrl-C on a terminal would, and by force where that is not enough."""
    if process.poll() is not None:
        return
    for number, patience in ((signal.SIGINT, 20), (signal.SIGKILL, 20)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
            return
