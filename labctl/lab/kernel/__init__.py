"""The lab's own kernel: one with every kernel-side fault facility on, and what a virtual machine lacks left out.

Debian's kernel source, configured by `lab.config`, built once by `build.sh` and kept in the cache under what
those two files say. A newer source package of the same series does not build it again: the key must be the same
without a network. Delete the cache's `kernels` directory to have the newest.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from labctl import paths
from labctl.errors import LabError
from labctl.lab import apt_sources
from labctl.lab.files import locked, prune, scratch
from labctl.lab.tools import need, run
from labctl.progress import Progress

SUITE = "trixie"
SOURCE_PACKAGE = "linux-source-6.12"
PROGRAMS = (
    "apt-get", "dpkg-deb", "gcc", "make", "bc", "flex", "bison", "pahole", "perl", "cpio", "xz",
    "lz4",
)  # fmt: skip
HEADERS = {"libelf.h": "libelf-dev", "openssl/evp.h": "libssl-dev"}
_BUILD_S = 5400.0
_LOCK_S = 2 * _BUILD_S
_KEPT = 2


@dataclass(frozen=True)
class LabKernel:
    """A built kernel: its image, a tar of /usr/lib/modules, and what `uname -r` says of it."""

    kernel: Path
    modules: Path
    release: str


def _files() -> tuple[Path, Path]:
    directory = Path(str(resources.files("labctl.lab").joinpath("kernel")))
    return directory / "lab.config", directory / "build.sh"


def kernel_key() -> str:
    """The key of the kernel that would be built now; reads the project's files, and no network."""
    digest = hashlib.sha256(f"{SUITE} {SOURCE_PACKAGE}".encode())
    for path in _files():
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def ensure_kernel(progress: Progress) -> LabKernel:
    """The lab kernel, built where it is not cached: about ten minutes on two processors.

    Raises LabError naming the programs that are missing, the options that the kernel's configuration would not
    take, or with the end of what the compiler said.
    """
    directory = paths.cache_dir() / "kernels"
    target = directory / kernel_key()
    with locked(directory / "lock", "the lab kernel", _LOCK_S, progress.note):
        if not target.is_dir():
            _need_toolchain()
            with scratch(directory) as work:
                _build(work, progress)
                (work / "done").rename(target)
            prune(directory.glob("[0-9a-f]*"), _KEPT)
        os.utime(target)
    return LabKernel(target / "kernel", target / "modules.tar", (target / "release").read_text().strip())


def _build(work: Path, progress: Progress) -> None:
    wanted, script = _files()
    (work / "done").mkdir()
    with progress.task(f"downloading {SOURCE_PACKAGE}"):
        package = apt_sources.download(SOURCE_PACKAGE, SUITE, work / "apt")
    jobs = str(len(os.sched_getaffinity(0)))
    places = (str(package), str(wanted), str(work / "done"), str(work / "build"), jobs)
    with progress.task("building the lab kernel, once, about ten minutes on two processors"):
        run(("nice", "-n", "10", "sh", "-e", str(script), *places), "building the lab kernel", timeout=_BUILD_S)
    (work / "done" / "source").write_text(f"{package.name}\n")


def _need_toolchain() -> None:
    """Raise a LabError that names what is missing to compile a kernel."""
    hint = "scripts/setup kernel installs all that is needed"
    try:
        need(*PROGRAMS)
    except LabError as error:
        raise LabError(error.message, f"{error.hint}; {hint}") from None
    for header, package in HEADERS.items():
        includes = ("gcc", "-include", header, "-x", "c", "-E", "-o", "/dev/null", "/dev/null")
        run(includes, f"looking for {header}", timeout=60, hint=f"apt-get install {package}; {hint}")
