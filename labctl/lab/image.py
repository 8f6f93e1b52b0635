"""The image that nodes start from: Debian packages and a kernel, made into a disk without root.

Stages, each cached by the content that goes into it, each made beside its place and moved there: a root tar (by
mmdebstrap), the agent's bundle, the lab's own kernel where that is wanted, and the disk with its kernel and
initramfs. A build that was interrupted goes on with the stages that are done.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from labctl import paths
from labctl.errors import LabError
from labctl.lab import apt_sources
from labctl.lab.bundle import add_file, build_bundle, bundle_key
from labctl.lab.files import locked, prune, scratch
from labctl.lab.kernel import LabKernel, ensure_kernel, kernel_key
from labctl.lab.model import KernelName
from labctl.lab.tools import need, run
from labctl.progress import Progress

ARCHITECTURE = "amd64"
DISK_SIZE = "4G"
PACKAGES = (
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "systemd-sysv",
    "udev",
    "dbus",
    "openssh-server",
    "python3",
    "iproute2",
    "nftables",
    "dmsetup",
    "kmod",
    "e2fsprogs",
    "xfsprogs",
    "iputils-ping",
    "procps",
    "fdisk",
    "busybox-static",
    "libbpf1",
    "bpftool",
    "strace",
)
_LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
)
_KEPT = 8
_LOCK_S = 1800.0


@dataclass(frozen=True)
class Guest:
    """What a node with a certain kernel is made of: a Debian suite, its CPython, and whose kernel it boots."""

    suite: str
    python_version: str
    own_kernel: bool = False


GUESTS: Mapping[KernelName, Guest] = {
    "debian13": Guest("trixie", "3.13"),
    "debian12": Guest("bookworm", "3.11"),
    "lab": Guest("trixie", "3.13", own_kernel=True),
}


@dataclass(frozen=True)
class Image:
    """A built image. `disk` is qcow2 and is never written to."""

    key: str
    disk: Path
    kernel: Path
    initrd: Path


def _guest() -> Path:
    return Path(str(resources.files("labctl.lab").joinpath("guest")))


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _overlay_files() -> dict[str, Path]:
    overlay = _guest() / "overlay"
    return {p.relative_to(overlay).as_posix(): p for p in sorted(overlay.rglob("*")) if p.is_file()}


def _packages(more: Sequence[str]) -> tuple[str, ...]:
    """The packages of a node: those of every node, and more, in whatever order they were asked for."""
    return (*PACKAGES, *sorted({*more} - {*PACKAGES}))


def rootfs_key(suite: str = "trixie", packages: Sequence[str] = (), finish: str = "") -> str:
    """The key of the root tar: package list, suite, architecture, and every script and file that shapes it."""
    shaped = [f"{name}\0".encode() + path.read_bytes() for name, path in _overlay_files().items()]
    scripts = [(_guest() / name).read_bytes() for name in ("rootfs.sh", "initramfs-init")]
    words = (suite, ARCHITECTURE, *_packages(packages), *_LEFT_OUT)
    return _digest(" ".join(words).encode(), *scripts, *shaped, *([finish.encode()] if finish else ()))


def image_key(agent: bool, kernel: KernelName = "debian13", packages: Sequence[str] = (), finish: str = "") -> str:
    """The key of the image that would be built now; reads files of the project only."""
    guest = GUESTS[kernel]
    parts = [
        rootfs_key(guest.suite, packages, finish),
        bundle_key(guest.python_version) if agent else "bare",
        DISK_SIZE,
    ]
    if guest.own_kernel:
        parts.append(kernel_key())
    return _digest("\0".join(parts).encode(), (_guest() / "assemble.sh").read_bytes())


def ensure_image(
    agent: bool,
    progress: Progress,
    kernel: KernelName = "debian13",
    packages: Sequence[str] = (),
    finish: str = "",
) -> Image:
    """The image for nodes with this kernel and these packages more, with or without the agent in it.

    `finish` is a shell script that shapes the tree in `$1` once the packages are installed. Built where it is not
    cached. Raises LabError where a tool, a mirror, a package or Debian's keyring is missing, or a stage fails.
    """
    guest = GUESTS[kernel]
    key = image_key(agent, kernel, packages, finish)
    directory = paths.cache_dir() / "images"
    target = directory / key
    image = Image(key, target / "disk.qcow2", target / "kernel", target / "initrd")
    if guest.own_kernel and not target.is_dir():
        ensure_kernel(progress)  # it takes minutes: before the lock, or other images would wait for it
    with locked(directory / "lock", "the node image", _LOCK_S, progress.note):
        if target.is_dir():
            os.utime(target)
            return image
        need("mmdebstrap", "mke2fs", "qemu-img", "unshare", *(() if os.geteuid() == 0 else ("newuidmap",)))
        bundle = build_bundle(guest.python_version, progress=progress) if agent else None
        rootfs = _ensure_rootfs(guest.suite, packages, finish, progress)
        own = ensure_kernel(progress) if guest.own_kernel else None
        with progress.task("assembling the node image") as task, scratch(directory) as work:
            task.update("file system")
            _in_namespace(_assembly(work, rootfs, bundle, own), "assembling the node image")
            done = work / "done"
            done.mkdir()
            task.update("disk")
            raw = work / "disk.raw"
            run(
                ("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(done / "disk.qcow2")),
                "converting the node image",
                timeout=300,
            )
            for name in ("kernel", "initrd"):
                (work / name).rename(done / name)
            if image_key(agent, kernel, packages, finish) != key:
                raise LabError("the agent's code changed while its image was made", "run it again")
            done.rename(target)
        prune(directory.glob("[0-9a-f]*"), _KEPT)
    return image


def _assembly(work: Path, rootfs: Path, bundle: Path | None, own: LabKernel | None) -> tuple[str, ...]:
    inputs = (str(rootfs), str(bundle or ""), DISK_SIZE, str(work.parent / "tree"))
    kernel = (str(own.kernel), str(own.modules)) if own else ("", "")
    return ("sh", str(_guest() / "assemble.sh"), str(work), *inputs, *kernel)


def _ensure_rootfs(suite: str, packages: Sequence[str], finish: str, progress: Progress) -> Path:
    directory = paths.cache_dir() / "rootfs"
    target = directory / f"{rootfs_key(suite, packages, finish)}.tar"
    if target.is_file():
        os.utime(target)
        return target
    source = apt_sources.mirror()
    with progress.task("installing Debian into the node image"), scratch(directory) as work:
        overlay = work / "overlay.tar"
        _pack_overlay(overlay)
        hook = (_guest() / "rootfs.sh").read_text()
        # As root, mmdebstrap mounts /proc, /sys and devices below its root. In a mount namespace of their own they
        # go with the last process, however it ends; left behind in ours, a clean-up could reach through them.
        private = ("unshare", "--mount", "--propagation", "private") if os.geteuid() == 0 else ()
        argv = (
            *private,
            "mmdebstrap",
            "--variant=minbase",
            "--format=tar",
            f"--architectures={ARCHITECTURE}",
            f"--keyring={source.keyring}",
            f"--include={','.join(_packages(packages))}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
            "--dpkgopt=force-confold",
            # Before the packages: so that their installation finds, e.g., that no initramfs is to be made.
            f"--essential-hook=tar-in '{overlay}' /",
            *((f"--customize-hook={finish}",) if finish else ()),
            f"--customize-hook={hook}",
            suite,
            str(work / "root.tar"),
            *((f"deb [signed-by={source.keyring}] {source.uri} {suite} main",) if source.uri else ()),
        )
        environment = {**os.environ, "GROUNDFAULT_INIT": (_guest() / "initramfs-init").read_text()}
        if "'" in str(overlay):
            raise LabError(
                f"the cache directory {paths.cache_dir()} has a quote in its name", "set XDG_CACHE_HOME"
            )
        run(argv, "installing Debian into the node image", timeout=1500, env=environment)
        (work / "root.tar").rename(target)
    prune(directory.glob("*.tar"), _KEPT)
    return target


def _pack_overlay(target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in _overlay_files().items():
            add_file(tar, name, path.read_bytes(), 0o755 if name.startswith("usr/lib/groundfault/") else 0o644)


def _in_namespace(argv: tuple[str, ...], what: str) -> None:
    """Run as root: the real one, or the root of a user namespace that has this user's subordinate ids."""
    if os.geteuid() != 0:
        argv = ("unshare", "--map-root-user", "--map-auto", *argv)
    hint = (
        "" if os.geteuid() == 0 else "an ordinary user needs ranges of ids: usermod --add-subuids, --add-subgids"
    )
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    run(argv, what, timeout=900, env={**os.environ, "PATH": path}, hint=hint)
