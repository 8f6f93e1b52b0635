"""KVM or emulation, decided by a trial boot.

The presence of /dev/kvm means nothing: there are machines where it opens, and guests then hang or QEMU aborts. So
the image's own kernel is booted with KVM until its initramfs says a word on the serial console, or time is up.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from labctl import paths
from labctl.lab.files import locked, write_atomic
from labctl.lab.tools import find, run
from labctl.progress import Progress

TRIAL_S = 20.0
"""A healthy KVM guest is in its initramfs after about one second."""

MARKER = b"groundfault: trial ok"


class Accelerator(BaseModel):
    """How guests run: `cpu_model` is QEMU's -cpu, `reason` says why, for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["kvm", "tcg"]
    cpu_model: str
    reason: str

    @property
    def accel(self) -> str:
        """QEMU's -accel. The buffer for translated code is bounded, or each node would take 1 GiB for it."""
        return "kvm" if self.name == "kvm" else "tcg,thread=multi,tb-size=256"


def emulation(reason: str) -> Accelerator:
    """The emulated processor. `-cpu max` alone emulates `rep movsb` byte by byte; without ERMS it does not."""
    return Accelerator(name="tcg", cpu_model="max,erms=off", reason=reason)


def qemu_version() -> str:
    """The first line of `qemu-system-x86_64 --version`."""
    return run(("qemu-system-x86_64", "--version"), "asking QEMU for its version", timeout=30).splitlines()[0]


def accelerator(kernel: Path, initrd: Path, progress: Progress, device: Path = Path("/dev/kvm")) -> Accelerator:
    """KVM where a trial boot with it works, emulation where not.

    The answer is kept in the cache for this host kernel, this QEMU and this processor.
    """
    if not device.exists():
        return emulation(f"there is no {device}")
    if not os.access(device, os.R_OK | os.W_OK):
        return emulation(f"no permission for {device} (usermod --append --groups kvm USER)")
    directory = paths.cache_dir() / "accelerator"
    known = directory / f"{_machine_key()}.json"
    with locked(directory / "lock", "the trial of KVM", 120, progress.note):
        try:
            return Accelerator.model_validate_json(known.read_bytes())
        except (FileNotFoundError, ValidationError):
            pass
        with progress.task("trying KVM"):
            answer = _try_kvm(kernel, initrd)
        write_atomic(known, answer.model_dump_json().encode())
    return answer


def accelerator_here(progress: Progress, device: Path = Path("/dev/kvm")) -> Accelerator | None:
    """The same for whoever has no image at hand: by a kernel of the cache, None where that has none."""
    kernels = sorted((paths.cache_dir() / "images").glob("*/kernel"), key=lambda kernel: kernel.stat().st_mtime)
    if not kernels and os.access(device, os.R_OK | os.W_OK):
        return None
    kernel = kernels[-1] if kernels else Path()
    return accelerator(kernel, kernel.with_name("initrd") if kernels else Path(), progress, device)


def _machine_key() -> str:
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "")
    parts = (platform.release(), platform.version(), qemu_version(), cpu)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def trial_argv(kernel: Path, initrd: Path, console: Path) -> tuple[str, ...]:
    """The machine of the trial: no disks, no network, ends by itself where all is well."""
    return (
        # A hung trial must not outlive us.
        *("setpriv", "--pdeathsig", "KILL", find("qemu-system-x86_64") or "qemu-system-x86_64"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "384"),
        *("-kernel", str(kernel), "-initrd", str(initrd)),
        *("-append", "console=ttyS0 quiet panic=-1 groundfault.trial"),
        *("-serial", f"file:{console}"),
    )


def _try_kvm(kernel: Path, initrd: Path) -> Accelerator:
    with tempfile.TemporaryDirectory(prefix="groundfault-trial-") as name:
        console, errors = Path(name) / "console", Path(name) / "errors"
        console.touch()
        with errors.open("wb") as out:
            process = subprocess.Popen(
                trial_argv(kernel, initrd, console), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            deadline = time.monotonic() + TRIAL_S
            while time.monotonic() < deadline:
                ended = process.poll() is not None
                if MARKER in console.read_bytes():
                    return Accelerator(name="kvm", cpu_model="host", reason="a trial boot with KVM worked")
                if ended:
                    said = errors.read_text(errors="replace").strip().splitlines()
                    why = (
                        said[-1].removeprefix("qemu-system-x86_64: ")
                        if said
                        else f"QEMU ended with {process.returncode}"
                    )
                    return emulation(f"a trial boot with KVM failed: {why}")
                time.sleep(0.05)
            return emulation(f"a trial boot with KVM showed no sign of life within {TRIAL_S:.0f} s")
        finally:
            process.kill()
            process.wait(timeout=30)
