"""What an I/O costs on the bare disk, through dm-linear and through FUSE: counted in a guest, and timed on a node.

The counting guest is a node's image with an empty data disk, on a clock that ticks once an instruction: wall time
of an emulated node scatters too much to see a few per cent.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.lab.accelerator import emulation
from labctl.lab.files import tail
from labctl.lab.image import ensure_image
from labctl.lab.model import Node
from labctl.progress import Progress
from tests.bench.ebpf.machine import Guest, argv, pack
from tests.lab import ssh, ssh_argv

HERE = Path(__file__).parent
PACKAGES = ("bindfs", "fio")
DATA_MIB = 256
GUEST_S = 900.0
FILES = ("bare", "linear", "fuse")
DISKS = ("bare disk", "linear, disk")
JOBS: tuple[dict[str, Any], ...] = (
    {"name": "read 4 KiB at random", "rw": "randread", "bs": "4k", "arms": [*DISKS, *FILES], "ios": 5000},
    {"name": "write 4 KiB at random", "rw": "randwrite", "bs": "4k", "arms": [*FILES], "ios": 5000},
    {"name": "read 128 KiB in order", "rw": "read", "bs": "128k", "arms": [*DISKS, *FILES], "ios": 3000},
)


def wanted(rounds: int, seconds: float = 0) -> dict[str, Any]:
    """What the guest is asked for; `seconds` a run is timed, 0: counted.

    Counted is with one I/O in flight: how many of 16 a single interrupt ends depends on how fast the host is.
    """
    jobs = [{"depth": 16 if seconds else 1, "size_mib": 64, **job} for job in JOBS]
    return {"rounds": rounds, "seconds": seconds, "jobs": jobs}


def time_on(node: Node, rounds: int, seconds: float = 1.5) -> list[dict[str, Any]]:
    """Measure on a node of the lab, whose data disk loses its content: `labctl reset` afterwards."""
    ssh(node, "systemctl stop groundfault-agent; umount /srv/data && dmsetup remove data && mkdir -p /run/bench")
    asked = json.dumps(wanted(rounds, seconds))
    for name, text in (("guest.py", (HERE / "guest.py").read_text()), ("wanted.json", asked)):
        subprocess.run(ssh_argv(node, f"cat > /run/bench/{name}"), input=text, text=True, check=True, timeout=60)
    said = ssh(node, "cd /run/bench && python3 -I guest.py wanted.json", timeout=GUEST_S).stdout
    return [json.loads(line) for line in said.splitlines()]


def count(progress: Progress, rounds: int) -> list[dict[str, Any]]:
    """Boot the guest, measure, and return the lines that it said. Raises LabError with the end of its console."""
    image = ensure_image(False, progress, packages=PACKAGES)
    guest = Guest(image, emulation("").cpu_model)
    asked = json.dumps(wanted(rounds))
    files = {"guest.py": (HERE / "guest.py").read_bytes(), "wanted.json": asked.encode()}
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as name, progress.task("counting instructions"):
        work = Path(name)
        start, payload, console, answer, data = (
            work / n for n in ("start.tar", "payload.tar", "console", "answer", "data")
        )
        pack(start, {"usr/sbin/init": (HERE / "init.sh").read_bytes()})
        pack(payload, {f"opt/bench/{name}": content for name, content in files.items()})
        for path in (console, answer):
            path.touch()
        with data.open("wb") as disk:
            disk.truncate(DATA_MIB * 2**20)
        scsi = ("-device", "virtio-scsi-pci", "-device", "scsi-hd,drive=data0")
        drive = ("-drive", f"file={data},if=none,id=data0,format=raw,cache=unsafe")
        _run((*argv(guest, start, payload, console, answer), *drive, *scsi), console, answer, work / "log")
        return [json.loads(line) for line in answer.read_text().splitlines() if line.strip()]


def _run(command: Sequence[str], console: Path, answer: Path, log: Path) -> None:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            process.wait(timeout=GUEST_S)
        except subprocess.TimeoutExpired:
            text = f"{tail(console)}\n{tail(answer, 3)}"
            raise LabError(f"the counting guest did not end within {GUEST_S:.0f} s", text) from None
        finally:
            process.kill()
            process.wait(timeout=30)
    if process.returncode or "bench: FAILED" in console.read_text(errors="replace"):
        raise LabError("the counting guest failed", f"{tail(console)}\n{tail(log)}\n{tail(answer, 3)}")
