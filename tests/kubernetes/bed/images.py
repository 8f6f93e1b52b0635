"""Container images made of a static busybox, as archives that `ctr images import` and `docker load` take."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

SANDBOX, APP = "registry.local/sandbox:1", "registry.local/app:1"
_DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp", "var")
FOREVER = 2**31 - 1
"""Seconds to sleep: busybox takes no word for it."""


def make_image(target: Path, name: str, command: Sequence[str], busybox: Path) -> None:
    """An image of one layer: busybox with its applets as links. `command` is what a container of it runs."""
    layer = _layer(busybox)
    config = {
        "architecture": "amd64", "os": "linux", "created": "2021-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/bin"], "WorkingDir": "/", "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": "2021-01-01T00:00:00Z"}],
    }  # fmt: skip
    text = json.dumps(config).encode()
    file = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = json.dumps([{"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, "w") as archive:
        for member, content in ((file, text), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(archive, member, content)


def _layer(busybox: Path) -> bytes:
    applets = subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for name in _DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        _add(archive, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
        _add(archive, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in applets:
            if applet != "busybox":
                entry = tarfile.TarInfo(f"bin/{applet}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(entry)
    return memory.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
