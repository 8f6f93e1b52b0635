"""The bench's guest: a node's image without its service manager, which runs one program and ends."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.lab.bundle import add_file
from labctl.lab.files import tail
from labctl.lab.image import Image

MEMORY_MIB = 1024
_COMMAND_LINE = "console=ttyS0 root=/dev/vda rw quiet mitigations=off random.trust_cpu=on panic=-1"


@dataclass(frozen=True)
class Guest:
    """How a guest is run: always on a clock that ticks once an instruction (QEMU's icount), so never with KVM."""

    image: Image
    cpu_model: str
    cpus: int = 1


def argv(guest: Guest, start: Path, payload: Path, console: Path, answer: Path) -> tuple[str, ...]:
    """QEMU's command line. The disk's writes are thrown away."""
    return (
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),  # must not outlive the bench
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "tcg,thread=single,tb-size=256", "-cpu", guest.cpu_model),
        *("-smp", str(guest.cpus), "-m", str(MEMORY_MIB)),
        *("-icount", "shift=0"),
        *("-kernel", str(guest.image.kernel), "-initrd", str(guest.image.initrd), "-append", _COMMAND_LINE),
        *("-drive", f"file={guest.image.disk},if=none,id=root0,format=qcow2,snapshot=on"),
        *("-device", "virtio-blk-pci,drive=root0"),
        *("-drive", f"file={payload},if=none,id=payload,format=raw,readonly=on"),
        *("-device", "virtio-blk-pci,drive=payload"),
        # The image's initramfs lays this over the root file system. Read byte by byte: for small things only.
        *("-fw_cfg", f"name=opt/org.groundfault/identity,file={start}"),
        *("-serial", f"file:{console}", "-serial", f"file:{answer}"),
    )


def pack(target: Path, files: dict[str, bytes], bundle: Path | None = None) -> None:
    """An archive that is laid over the guest's root file system: `files`, and the agent's packages."""
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as out:
        if bundle:
            with tarfile.open(bundle) as packed:
                for member in packed:
                    out.addfile(member, packed.extractfile(member))
        for name, content in files.items():
            add_file(out, name, content, 0o755)


def run(guest: Guest, bundle: Path, init: bytes, files: dict[str, bytes], timeout: float) -> list[dict[str, Any]]:
    """Boot into `init` with `files` in /opt/bench, and return the lines of JSON that it said.

    Raises LabError with the end of its console where it fails or takes longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as name:
        work = Path(name)
        start, payload, console, answer, log = (
            work / n for n in ("start.tar", "payload.tar", "console", "answer", "log")
        )
        pack(start, {"usr/sbin/init": init})
        pack(payload, {f"opt/bench/{name}": content for name, content in files.items()}, bundle)
        for path in (console, answer):
            path.touch()
        deadline = time.monotonic() + timeout
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv(guest, start, payload, console, answer), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            process.wait(timeout=deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            raise LabError(f"the bench's guest did not end within {timeout:.0f} s", tail(console)) from None
        finally:
            process.kill()
            process.wait(timeout=30)
        if process.returncode or "bench: FAILED" in console.read_text(errors="replace"):
            raise LabError("the bench's guest failed", f"{tail(console)}\n{tail(log)}\n{tail(answer, 3)}")
        said = io.StringIO(answer.read_text())
        return [json.loads(line) for line in said if line.strip()]
