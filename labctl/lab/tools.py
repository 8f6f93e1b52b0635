"""Running other programs: bounded, ended when we are, and with their own words in the error."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

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
}


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

    Whatever ends the wait (an error, Ctrl-C) also ends the program, which gets time to clean up.
    """
    program = find(argv[0]) if "/" not in argv[0] else argv[0]
    process = subprocess.Popen(
        [program or argv[0], *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(env) if env is not None else None,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise LabError(f"{what}: not done after {timeout:.0f} s", hint) from None
    finally:
        _end(process)
    if process.returncode != 0:
        last = "\n".join((err.strip() or out.strip()).splitlines()[-15:])
        raise LabError(f"{what}: {Path(argv[0]).name} ended with {process.returncode}", hint or last)
    return out


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
