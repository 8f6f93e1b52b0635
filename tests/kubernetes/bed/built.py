"""The programs of the test bed, built once and kept in the cache under what they are built of.

The source package of Debian 12 is the last that has the servers of Kubernetes: 1.20. Everything else is of that
Debian, too, unpacked and not installed, so that nothing on this machine starts a daemon. It is built by `python -m
tests.kubernetes.bed.built`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from labctl import paths
from labctl.lab import apt_sources
from labctl.lab.files import locked, prune, scratch
from labctl.lab.tools import need, run
from labctl.progress import Progress, progress_for_stderr

SUITE = "bookworm"
SOURCE = "kubernetes"
DEBS = (
    "golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server", "containerd",
    "runc", "containernetworking-plugins", "busybox-static",
)  # fmt: skip
_SCRIPT = Path(__file__).with_name("build.sh")
_BUILD_S = 5400.0
_KEPT = 2


@dataclass(frozen=True)
class Built:
    """Where the programs are."""

    directory: Path

    @property
    def version(self) -> str:
        """Of Kubernetes, such as 1.20.2."""
        return (self.directory / "version").read_text().strip()

    @property
    def cni(self) -> Path:
        """The network plugins."""
        return self.directory / "cni"

    def program(self, name: str) -> Path:
        """A program."""
        return self.directory / "bin" / name


def build_key() -> str:
    """The key of what would be built now; reads the project's files, and no network."""
    digest = hashlib.sha256(" ".join((SUITE, SOURCE, *DEBS)).encode())
    digest.update(_SCRIPT.read_bytes())
    return digest.hexdigest()[:16]


def ensure_built(progress: Progress) -> Built:
    """The programs, built where they are not cached: about five minutes on two processors.

    Raises LabError with what is missing, or with the end of what the compiler said.
    """
    directory = paths.cache_dir() / "kubernetes"
    target = directory / build_key()
    with locked(directory / "lock", "Kubernetes", 2 * _BUILD_S, progress.note):
        if not target.is_dir():
            need("apt-get", "dpkg-deb", "dpkg-source", "patch", "xz")
            with scratch(directory) as work:
                _build(work, progress)
                (work / "done").rename(target)
            prune(directory.glob("[0-9a-f]*"), _KEPT)
        os.utime(target)
    return Built(target)


def _build(work: Path, progress: Progress) -> None:
    packages = work / "packages"
    for name in ("done", "build", "packages"):
        (work / name).mkdir()
    with progress.task("downloading Kubernetes and what runs beside it"):
        apt = apt_sources.own_apt(SUITE, packages, ("deb", "deb-src"))
        run((*apt, "download", *DEBS), "downloading packages", timeout=1800)
        run((*apt, "source", "--download-only", SOURCE), f"downloading the source of {SOURCE}", timeout=1800)
    places = (str(packages), str(work / "done"), str(work / "build"))
    with progress.task("building Kubernetes, once, about five minutes on two processors"):
        run(("nice", "-n", "15", "sh", "-e", str(_SCRIPT), *places), "building Kubernetes", timeout=_BUILD_S)


if __name__ == "__main__":
    found = ensure_built(progress_for_stderr())
    print(f"Kubernetes {found.version}: {found.directory}")
