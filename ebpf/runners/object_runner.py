"""Loads a compiled CO-RE object, attaches all of it and serves its counters. A script for the agent's own Python.

Settings: `source`, the object in base64; `target`, the process and the seed that the map `target` is told. The
links are not pinned: they end with this process.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from ebpf.loader.libbpf import BpfError, Link, Map, Object, library
from ebpf.runners.protocol import RefusedError, Report, counter_names, serve

ARRAY, PERCPU_ARRAY = 2, 6
"""enum bpf_map_type of <linux/bpf.h>."""

_MOST = 64
"""Counters that are read of a map."""


def _start(given: dict[str, Any]) -> Callable[[], Report]:
    try:
        program = Object(base64.b64decode(given["source"]), "the program")
        _refuse_pins(program)
        for one in program.programs.values():
            one.choose()
        program.load()
        _tell_target(program, *given["target"])
        links = [one.attach() for one in program.programs.values()]
    except BpfError as error:
        raise RefusedError(str(error) if error.log else f"kernel {os.uname().release}: {error}") from None
    except OSError as error:
        raise RefusedError(f"{error}; remedy: apt-get install libbpf1") from None
    if not links:
        raise RefusedError("the object has no program")
    return _reporter(program, links)


def _refuse_pins(program: Object) -> None:
    """A pinned map would outlive the injection, and libbpf would take up one that is there already."""
    path = library().bpf_map__pin_path
    path.restype, path.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    pinned = [name for name, pointer in program._maps.items() if path(pointer)]
    if pinned:
        raise RefusedError(f"the object pins maps, which would stay: {', '.join(pinned)}; leave out the pinning")


def _tell_target(program: Object, pid: int, seed: int) -> None:
    try:
        target = program.map("target")
    except KeyError:
        if not pid:
            return
        raise RefusedError("the object has no map called target, so it cannot be told of a process") from None
    if _described(target) != (ARRAY, 4, 8, 2):
        raise RefusedError("the map target has to be an array of two u64: process id and seed")
    for index, value in enumerate((pid, seed)):
        target.put(ctypes.c_uint32(index), ctypes.c_uint64(value))


def _described(one: Map) -> tuple[int, int, int, int]:
    """Type, size of key and value, and number of entries, as the kernel shows them (proc_pid_fdinfo(5))."""
    lines = Path(f"/proc/self/fdinfo/{one.fd}").read_text().splitlines()
    found = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    kind, key, value, most = (int(found[f][0], 0) for f in ("map_type", "key_size", "value_size", "max_entries"))
    return kind, key, value, most


def _reporter(program: Object, links: list[Link]) -> Callable[[], Report]:
    try:
        hits = program.map("hits")
    except KeyError:
        raise RefusedError("the object has no map called hits: an array of u64, 0 counts the hits") from None
    kind, key, value, most = _described(hits)
    if kind not in (ARRAY, PERCPU_ARRAY) or (key, value) != (4, 8):
        raise RefusedError("the map hits has to be an array, or an array for each CPU, of u64")
    cpus = 1 + int(Path("/sys/devices/system/cpu/possible").read_text().strip().replace(",", "-").split("-")[-1])
    room = ctypes.c_uint64 * (cpus if kind == PERCPU_ARRAY else 1)

    def report() -> Report:
        values = []
        for index in range(min(most, _MOST)):
            found = room()
            hits.get(ctypes.c_uint32(index), found)
            values.append(sum(found))
        return {"counters": dict(zip(counter_names(len(values)), values, strict=True)), "attached": len(links)}

    return report


if __name__ == "__main__":
    sys.exit(serve(_start))
