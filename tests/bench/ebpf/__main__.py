"""Run the benchmark: three guests one after the other, JSON on standard output, a plot in a file.

Instructions are counted, not time: QEMU's icount ticks the guest's clock once for each, of all its processors in
turn, so that a run gives the same numbers on a busy machine. What this machine's own kernel can run (seccomp,
strace) is also timed here without emulation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labctl.lab.accelerator import emulation
from labctl.lab.bundle import build_bundle
from labctl.lab.image import GUESTS, ensure_image
from labctl.lab.model import KernelName
from labctl.lab.tools import find, need
from labctl.lab.tools import run as run_tool
from labctl.progress import PlainProgress, Progress
from tests.bench.ebpf import report
from tests.bench.ebpf.machine import Guest, run
from tests.bench.ebpf.plot import svg
from tests.bench.lab import machine

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CALLS = {"pread": 5000, "openat": 2000, "connect": 500}
PAGE = bytes(8192)
GUEST_S = 600.0


def compiled(work: Path) -> dict[str, bytes]:
    """The loop, and the programs of other mechanisms."""
    need("gcc", "clang")
    loop, others = work / "loop", work / "others.bpf.o"
    run_tool(("gcc", "-O2", "-static", "-o", str(loop), str(HERE / "loop.c")), "compiling the loop", timeout=60)
    bpf = ("-g", "-O2", "-mcpu=v3", "-target", "bpf", "-D__TARGET_ARCH_x86", "-I", str(ROOT / "ebpf"))
    run_tool(
        ("clang", *bpf, "-c", str(HERE / "others.bpf.c"), "-o", str(others)), "compiling programs", timeout=60
    )
    return {"loop": loop.read_bytes(), "others.bpf.o": others.read_bytes(), "page": PAGE}


def in_guest(
    name: str, kernel: KernelName, files: dict[str, bytes], progress: Progress, *, cpus: int = 1, rounds: int = 3
) -> dict[str, Any]:
    """One guest from its boot to its end."""
    image = ensure_image(False, progress, kernel)
    guest = Guest(image, emulation("").cpu_model, cpus)
    wanted = {"cpus": cpus, "calls": CALLS, "rounds": rounds, "rules": [1, 10, 1000], "programs": [1, 10],
              "others": kernel == "lab"}  # fmt: skip
    guest_part = {"tests/bench/ebpf/guest.py": (HERE / "guest.py").read_bytes()}
    content = {**files, **guest_part, "wanted.json": json.dumps(wanted).encode()}
    bundle = build_bundle(GUESTS[kernel].python_version, progress=progress)
    start = time.monotonic()
    with progress.task(f"measuring: {name}"):
        lines = run(guest, bundle, (HERE / "init.sh").read_bytes(), content, GUEST_S)
    found = report.run_of(lines, name, "instructions")
    return {**found, "cpus": cpus, "took_s": round(time.monotonic() - start)}


def native(work: Path, rounds: int = 7) -> dict[str, Any]:
    """What this machine's own kernel can run: seccomp and strace beside nothing, in nanoseconds of wall time."""
    page = work / "page"
    page.write_bytes(PAGE)
    strace = (find("strace") or "", "-f", "-q", "-o", "/dev/null")
    other = ("-e", "trace=getppid", "-e", "inject=getppid:error=EIO")
    cases: list[tuple[str, str, tuple[str, ...], str, int]] = [
        ("nothing", "nothing loaded", (), "none", 40), ("seccomp", "other call", (), "other", 40),
        ("seccomp", "injects", (), "errno", 40),
    ]  # fmt: skip
    if strace[0]:
        on_call = ("-e", "trace=CALL", "-e", "inject=CALL:error=EIO:when=65535")
        cases.append(("strace", "other call", (*strace, *other), "none", 1))
        cases.append(("strace", "schedule says no", (*strace, *on_call), "none", 1))
    lines = []
    for call, count in CALLS.items():
        for mechanism, situation, prefix, seccomp, times in cases:
            words = [word.replace("CALL", {"pread": "pread64"}.get(call, call)) for word in prefix]
            argv = [*words, str(work / "loop"), call, str(count * times), str(rounds), seccomp]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=120,
                env={"LOOP_FILE": str(page)},
            )  # fmt: skip
            numbers = [float(word) for word in done.stdout.split()[1:-2]]
            lines.append({"call": call, "mechanism": mechanism, "situation": situation, "rules": 1,
                          "ns": min(numbers)})  # fmt: skip
    return report.run_of(lines, "this machine, native", "nanoseconds")


def measure(progress: Progress) -> dict[str, Any]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as name:
        work = Path(name)
        files = compiled(work)
        runs = [
            in_guest("lab kernel, counted", "lab", files, progress),
            in_guest("stock Debian 13, counted", "debian13", files, progress),
            in_guest("lab kernel, two processors, counted", "lab", files, progress, cpus=2, rounds=9),
        ]
        runs.append(native(work))
        return report.whole(machine(), runs)


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot (SVG) there")
    options = parser.parse_args(list(argv) if argv is not None else None)
    result = measure(PlainProgress())
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    if options.plot:
        options.plot.write_text(svg(result["runs"][0]))
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
