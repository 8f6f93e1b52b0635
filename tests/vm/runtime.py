"""containerd of Debian 13 on a node of the lab: unpacked, not installed, and gone with a reset."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tarfile
from pathlib import Path

from labctl import paths
from labctl.lab import apt_sources
from labctl.lab.files import locked, scratch
from labctl.lab.model import Node
from labctl.lab.tools import run
from tests.kubernetes.bed import images
from tests.lab import ssh, ssh_argv

SUITE, DEBS = "trixie", ("containerd", "runc")
PROGRAMS = ("bin/containerd", "bin/containerd-shim-runc-v2", "bin/ctr", "sbin/runc")
HOME, IMAGE = "/opt/runtime", "registry.local/app:1"


def ensure_archive() -> Path:
    """A tar of the programs, made where it is not cached."""
    key = hashlib.sha256(" ".join((SUITE, *DEBS, *PROGRAMS)).encode()).hexdigest()[:16]
    directory = paths.cache_dir() / "containerd"
    target = directory / f"{key}.tar.gz"
    with locked(directory / "lock", "containerd", 600, lambda text: None):
        if not target.exists():
            with scratch(directory) as work:
                apt = apt_sources.own_apt(SUITE, work / "apt")
                run((*apt, "download", *DEBS), "downloading containerd", timeout=600)
                for package in (work / "apt").glob("*.deb"):
                    run(("dpkg-deb", "-x", str(package), str(work / "tree")), "unpacking", timeout=120)
                with tarfile.open(work / "done", "w:gz", compresslevel=6) as archive:
                    for program in PROGRAMS:
                        archive.add(work / "tree" / "usr" / program, Path(program).name)
                (work / "done").rename(target)
        os.utime(target)
    return target


class Runtime:
    """containerd on a node, with an image made there of the node's own busybox."""

    def __init__(self, node: Node) -> None:
        self._node = node
        with ensure_archive().open("rb") as archive:
            unpack = f"mkdir -p {HOME} && tar -xz -C {HOME}"
            subprocess.run(ssh_argv(node, unpack), stdin=archive, check=True, timeout=120)
        environment = f"--setenv=PATH={HOME}:/usr/sbin:/usr/bin"
        self.sh(f"systemd-run -q --unit=runtime {environment} {HOME}/containerd")
        source = Path(images.__file__).read_text()
        make = f"""
from pathlib import Path
make_image(Path("/run/app.tar"), {IMAGE!r}, ("sleep", "9"), Path("/bin/busybox"))
"""
        subprocess.run(
            ssh_argv(node, "python3", "-"), input=f"{source}\n{make}", text=True, check=True, timeout=60
        )
        self.sh(
            f"for n in $(seq 100); do {HOME}/ctr version >/dev/null 2>&1 && break; sleep 0.2; done; "
            f"{HOME}/ctr -n k8s.io images import --snapshotter native /run/app.tar"
        )

    def sh(self, script: str, check: bool = True) -> str:
        """Standard output of a script on the node."""
        return ssh(self._node, script, check=check).stdout.strip()

    def start(self, identity: str, group: str, script: str, *, systemd: bool) -> int:
        """A container as a kubelet asks for one, in that control group; the number of its first process."""
        driver = "--runc-systemd-cgroup" if systemd else ""
        words = shlex.join(["sh", "-c", script])
        where = f"PATH={HOME}:$PATH ctr -n k8s.io"
        self.sh(
            f"{where} run --detach --snapshotter native {driver} --cgroup {shlex.quote(group)} "
            f"{IMAGE} {identity} {words}"
        )
        tasks = self.sh(f"{where} task list").splitlines()
        return next(int(line.split()[1]) for line in tasks if line.startswith(identity))

    def kill(self, identity: str) -> None:
        """The container ends, and what the runtime knows of it."""
        where = f"PATH={HOME}:$PATH ctr -n k8s.io"
        self.sh(f"{where} task delete --force {identity}; {where} containers delete {identity}")
