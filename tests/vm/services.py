"""Services that tests of process and CPU faults act on, and what systemd and the kernel say of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.user import until
from tests.vm.disks import Bench

GROUPS = "/sys/fs/cgroup/system.slice"

COUNTS = (
    'sleep 1000000 & exec perl -e \'open F, "+>", "/run/$0.count"; '
    'while (1) { sysseek F, 0, 0; syswrite F, ++$i . "\\n"; select undef, undef, undef, 0.05 }\''
)
"""Counts in a file, nearly 20 a second, and has a child. perl starts fast on an emulated node."""

BUSY = "while :; do :; done"
"""Wants all of a CPU."""


@contextmanager
def services(bench: Bench, **scripts: tuple[str, str]) -> Iterator[None]:
    """Units with these names, each of (lines of its file, script), that run; gone at the end. Not transient."""
    names = " ".join(scripts)
    made = []
    for name, (lines, script) in scripts.items():
        unit = f"[Service]\nExecStart=/bin/sh /run/{name}.sh\n{lines}"
        made.append(f"cat > /run/systemd/system/{name}.service <<'END'\n{unit}\nEND\n")
        made.append(f"cat > /run/{name}.sh <<'END'\n{script.replace('$0', name)}\nEND\n")
    counts = " ".join(f"/run/{name}.count" for name, (_, script) in scripts.items() if ".count" in script)
    begun = "for n in $(seq 300); do [ -s $f ] && break; sleep 0.1; done"
    bench.sh(f"{''.join(made)}rm -f {counts}; systemctl daemon-reload; systemctl start {names}; "
             f"for f in {counts}; do {begun}; done")  # fmt: skip
    try:
        yield
    finally:
        files = " ".join(f"/run/systemd/system/{name}.service /run/{name}.sh" for name in scripts)
        bench.sh(f"systemctl kill -s KILL {names}; systemctl stop {names}; systemctl reset-failed {names}; "
                 f"rm -f {files}; systemctl daemon-reload", check=False)  # fmt: skip


def show(bench: Bench, unit: str, *properties: str) -> list[str]:
    """Properties of a unit, in the order asked."""
    said = bench.sh(f"systemctl show -p {','.join(properties)} {unit}").splitlines()
    known = dict(line.partition("=")[::2] for line in said)
    return [known.get(name, "") for name in properties]


def main_pid(bench: Bench, unit: str) -> int:
    return int(show(bench, unit, "MainPID")[0])


def beats(bench: Bench, *names: str, seconds: float = 1.0) -> list[int]:
    """How far these services have counted in so long."""
    files = " ".join(f"/run/{name}.count" for name in names)
    out = bench.sh(f"cat {files}; sleep {seconds}; cat {files}").split()
    return [int(b) - int(a) for a, b in zip(out[: len(names)], out[len(names) :], strict=True)]


def shares(bench: Bench, *units: str, seconds: float = 3.0) -> list[float]:
    """What share of one CPU these units had, by the kernel's account (cpu.stat) and its clock since boot."""
    clock = "cut -d' ' -f1 /proc/uptime"
    look = "; ".join((clock, *(f"sed -n 's/usage_usec //p' {group_of(unit)}/cpu.stat" for unit in units)))
    out = [float(word) for word in bench.sh(f"{look}; sleep {seconds}; {look}").split()]
    before, after = out[: len(units) + 1], out[len(units) + 1 :]
    took = after[0] - before[0]
    return [(b - a) / 1e6 / took for a, b in zip(before[1:], after[1:], strict=True)]


def group_of(unit: str) -> str:
    """The control group of a service, or the path itself."""
    return unit if unit.startswith("/") else f"{GROUPS}/{unit}.service"


def becomes(bench: Bench, unit: str, *states: str, within_s: float = 30.0) -> None:
    """Wait until a unit is in one of these states."""
    until(f"{unit} is {' or '.join(states)}", lambda: show(bench, unit, "ActiveState")[0] in states, within_s)
