"""`make bench`: how long the main verbs take, as JSON with a description of the machine.

Uses a lab of its own, which it destroys. `--cold` also builds the image and boots the nodes with an empty cache,
as a new user's first `labctl up` does. Times are seconds of wall clock; those of the command line include
starting Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from labctl.cli.world import RealTools
from labctl.lab.accelerator import accelerator
from labctl.lab.image import ensure_image
from labctl.progress import PlainProgress
from labctl.transport.client import AgentClient

LAB = "bench"
NODE = "w2"


def command(*argv: str) -> None:
    """Type a labctl command; its progress goes to standard error."""
    subprocess.run((sys.executable, "-m", "labctl", "--lab", LAB, *argv), check=True, stdout=subprocess.DEVNULL)


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and every value, in seconds."""
    return {
        "median_s": round(statistics.median(times), 3),
        "min_s": round(min(times), 3),
        "max_s": round(max(times), 3),
        "runs": [round(t, 3) for t in times],
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    image = ensure_image(True, PlainProgress())
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    qemu = subprocess.run(("qemu-system-x86_64", "--version"), capture_output=True, text=True, check=True).stdout
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "qemu": qemu.splitlines()[0],
        "accelerator": accelerator(image.kernel, image.initrd, PlainProgress()).name,
    }


def inject_and_recover(runs: int) -> dict[str, Any]:
    """From the request to the verified answer, on one open connection to one agent."""
    tools = RealTools()
    node = next(n for n in tools.open_lab(LAB).nodes() if n.name == NODE)
    applied, recovered, seen = [], [], []
    with tools.transport(LAB, node, "grpc") as transport:
        client = AgentClient(transport)
        client.probe()
        for n in range(runs):
            start = time.monotonic()
            view = client.apply(f"bench-{n}-{os.getpid()}", "latent_sector_error", {"seed": n}, 300)
            applied.append(time.monotonic() - start)
            assert view.evidence is not None and view.evidence.hits > 0
            seen.append(view.evidence.hits)
            start = time.monotonic()
            (ended,) = client.recover((view.id,)).injections
            recovered.append(time.monotonic() - start)
            assert ended.state == "recovered", ended
    return {"inject": summary(applied), "recover": summary(recovered), "hits_at_proof": seen}


def cold() -> dict[str, float]:
    """The first `labctl up` of a new user: empty cache, image build, boot, golden snapshot."""
    old = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="groundfault-cold-") as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        try:
            build = timed(lambda: command("image"))
            first = timed(lambda: command("up"))
            command("down", "--destroy")
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if old is not None:
                os.environ["XDG_CACHE_HOME"] = old
    return {"image_build_s": round(build, 1), "first_up_s": round(first, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="also build and boot with an empty cache (minutes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as state:
        os.environ["XDG_STATE_HOME"] = state
        result: dict[str, Any] = {"machine": machine()}
        if options.cold:
            result["cold"] = cold()
        try:
            result["first_up_s"] = round(timed(lambda: command("up")), 1)
            ups, resets = [], []
            for _ in range(options.runs):
                command("down")
                ups.append(timed(lambda: command("up")))
            for _ in range(options.runs):
                resets.append(timed(lambda: command("reset")))
            result["up_from_golden"], result["reset"] = summary(ups), summary(resets)
            result.update(inject_and_recover(2 * options.runs))
        finally:
            command("down", "--destroy")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
