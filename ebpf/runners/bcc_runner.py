"""Compiles a BCC program, attaches it and serves its counters. A script for the system's own Python.

The bindings are Debian's python3-bpfcc; PyPI's `bcc` is another project. Settings: `source`, the C text; `flags`
for the compiler; `attach`, for functions whose names do not say where they belong.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from ebpf.runners.protocol import RefusedError, Report, counter_names, serve

BY_HAND = ("kprobe", "kretprobe", "tracepoint", "raw_tracepoint")
"""What `attach` can name, in the words of BCC's methods."""

_HEADERS = (
    "there are no headers for the running kernel; remedy: apt-get install linux-headers-cloud-amd64 (or "
    "linux-headers-amd64: the package of that very kernel), or a kernel with CONFIG_IKHEADERS"
)
_LINES = 6


@contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    """What C code writes to standard error meanwhile."""
    file = os.memfd_create("stderr")
    kept = os.dup(2)
    os.dup2(file, 2)

    def text() -> str:
        return os.pread(file, 1 << 22, 0).decode(errors="replace")

    try:
        yield text
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


def reason(written: str, error: str) -> str:
    """In a line, what BCC and the kernel wrote when a program was refused. Pure."""
    if "kernel headers" in written or "kernel headers" in error:
        return _HEADERS
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"\b(fatal )?error:", line)]
    if wrong:
        told = (re.sub(r"^/virtual/main\.c:", "line ", line) for line in wrong)
        return f"the program does not compile: {' | '.join(list(told)[:_LINES])}"
    if "Failed to load BPF program" in error:
        log = [line for line in lines if not line.startswith(("processed ", "HINT:", "bpf: Failed to load"))]
        name = re.search(r"b'(\w+)': (.*)", error)
        what = f"{name[1]}: {name[2]}" if name else error
        return (
            f"kernel {platform.release()} refuses the program {what}; "
            f"the verifier's last lines: {' | '.join(log[-_LINES:])}"
        )
    last = " | ".join(lines[-_LINES:])
    return f"{error}: {last}" if last else error


def _start(given: dict[str, Any]) -> Callable[[], Report]:
    try:
        bcc = importlib.import_module("bcc")
    except ImportError as error:
        raise RefusedError(f"BCC cannot be used: {error}; remedy: apt-get install python3-bpfcc") from None
    if not hasattr(bcc, "BPF"):
        raise RefusedError("the module bcc is not Debian's; remedy: apt-get install python3-bpfcc")
    # BCC's wrapper chatters on standard output, where the agent listens.
    with _captured() as written:
        try:
            bpf = bcc.BPF(text=given["source"], cflags=list(given["flags"]))
            for hint in given["attach"]:
                _attach(bpf, hint)
        except Exception as error:  # noqa: BLE001  (BCC raises nothing narrower)
            raise RefusedError(reason(written(), str(error))) from None
    attached = _count(bpf)
    if not attached:
        raise RefusedError(
            "nothing of the program was attached; allowed: LSM_PROBE, KFUNC_PROBE, TRACEPOINT_PROBE, "
            "RAW_TRACEPOINT_PROBE, functions called kprobe__NAME and the like, or --attach"
        )
    return _reporter(bpf, attached)


def _reporter(bpf: Any, attached: int) -> Callable[[], Report]:
    try:
        hits = bpf["hits"]
    except KeyError:
        raise RefusedError("the program has no map called hits: BPF_ARRAY(hits, u64, 1)") from None

    def report() -> Report:
        values = [number(value) for value in hits.values()]
        return {"counters": dict(zip(counter_names(len(values)), values, strict=True)), "attached": attached}

    with suppress(TypeError):
        report()
        return report
    raise RefusedError("the map hits has to hold numbers: BPF_ARRAY(hits, u64, 1), or BPF_PERCPU_ARRAY")


def number(value: Any) -> int:
    """A counter as BCC gives it: a ctypes integer, or an array of one for each CPU. Else TypeError."""
    if isinstance(value, ctypes.Array):
        return sum(map(number, value))
    found = getattr(value, "value", value)
    if not isinstance(found, int):
        raise TypeError(f"{value!r} is not a number")
    return found


def _attach(bpf: Any, hint: str) -> None:
    place, _, function = hint.partition("=")
    kind, _, name = place.partition(":")
    match kind:
        case "kprobe":
            bpf.attach_kprobe(event=name, fn_name=function)
        case "kretprobe":
            bpf.attach_kretprobe(event=name, fn_name=function)
        case "tracepoint":
            bpf.attach_tracepoint(tp=name, fn_name=function)
        case "raw_tracepoint":
            bpf.attach_raw_tracepoint(tp=name, fn_name=function)
        case _:
            raise RefusedError(f"attach: {hint!r}; allowed: {', '.join(BY_HAND)}")


def _count(bpf: Any) -> int:
    return sum(
        len(value) for name, value in vars(bpf).items() if name.endswith("_fds") and isinstance(value, dict)
    )


if __name__ == "__main__":
    sys.exit(serve(_start))
