"""The part of `make bench-ebpf` that runs inside the guest: each line it prints is one measurement, as JSON.

Alone on the machine, started in place of a service manager; wanted.json beside it says what to measure.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from ebpf.calls import function_of
from ebpf.loader.engine import Engine
from ebpf.loader.libbpf import Object
from ebpf.operations import FAMILIES
from node_agent.rules import Hook, Rule, Scope
from node_agent.schedule import ScheduleValue

HERE = Path("/opt/bench")
CGROUPS = Path("/sys/fs/cgroup")
VICTIM = "/bench.slice/bench.service"
NEIGHBOUR = "/other.slice/bench.service"
"""In the slice of the units that have rules, without one."""
CALLS = {"pread": ("pread64", "read"), "openat": ("openat", "open"), "connect": ("connect", "connect")}
"""What the loop calls it: the system call, and our operation."""
ALWAYS = ScheduleValue()
NEVER = ScheduleValue(kind="after", a=2**52)


class Child:
    """The loop, made ready in its cgroup and on its processor; it waits until it is released."""

    def __init__(self, argv: Sequence[str], cgroup: str, cpu: int) -> None:
        procs = CGROUPS / cgroup.strip("/") / "cgroup.procs"

        def enter() -> None:
            os.sched_setaffinity(0, {cpu})
            procs.write_text(str(os.getpid()))

        env = {"LOOP_FILE": str(HERE / "page"), "PATH": os.environ["PATH"]}
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            preexec_fn=enter,  # noqa: PLW1509 - one thread
        )
        self.pid = self._process.pid
        assert self._process.stdout
        said = self._process.stdout.readline()
        if said != "ready\n":
            raise RuntimeError(f"{argv} did not get ready: {said}")

    def release(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("x")
        self._process.stdin.flush()

    def answer(self) -> list[float]:
        text, _ = self._process.communicate(timeout=120)
        if self._process.returncode:
            raise RuntimeError(f"the loop ended with {self._process.returncode}: {text}")
        return [float(word) for word in text.split()]


class Bench:
    """Measures, and says what it measured."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.cpus: int = wanted["cpus"]
        self.calls: dict[str, int] = wanted["calls"]
        self.rounds: int = wanted["rounds"]
        self.counts: list[int] = wanted["rules"]
        self.programs: list[int] = wanted["programs"]
        for cgroup in (VICTIM, NEIGHBOUR):
            (CGROUPS / cgroup.strip("/")).mkdir(parents=True)

    def say(self, **what: Any) -> None:
        print(json.dumps(what), flush=True)

    def loop(
        self, call: str, mechanism: str, situation: str, rules: int, *, cgroup: str = VICTIM,
        seccomp: str = "none", prefix: Sequence[str] = (), share: float = 1.0,
        before: Callable[[Sequence[int]], None] | None = None, after: Callable[[], None] | None = None,
        fails: bool = False,
    ) -> None:  # fmt: skip
        """One measurement: the loop on each processor at once. `share` of the usual number of calls."""
        count = max(20, int(self.calls[call] * share))
        argv = (*prefix, str(HERE / "loop"), call, str(count), str(self.rounds), seccomp)
        children = [Child(argv, cgroup, cpu) for cpu in range(self.cpus)]
        if before:
            before([child.pid for child in children])
        for child in children:
            child.release()
        answers = [child.answer() for child in children]
        if after:
            after()
        times = [min(answer[:-2]) for answer in answers]
        failed, made = (sum(int(answer[n]) for answer in answers) for n in (-2, -1))
        if failed != (made if fails else 0):
            raise RuntimeError(f"{call} {mechanism} {situation}: {failed} of {made} calls failed")
        self.say(call=call, mechanism=mechanism, situation=situation, rules=rules, cpus=self.cpus,
                 ns=round(sum(times) / len(times), 1), rounds=[answer[:-2] for answer in answers])  # fmt: skip

    def all_calls(self, mechanism: str, situation: str, rules: int, **how: Any) -> None:
        for call in self.calls:
            self.loop(call, mechanism, situation, rules, **how)


def hooks_of(call: str) -> tuple[Hook, ...]:
    """As the agent would choose them on a stock kernel."""
    return tuple(Hook(name=name, flavour="lsm") for name in FAMILIES[CALLS[call][1]].hooks)


def rule_for(scope: Scope, calls: Sequence[str], schedule: ScheduleValue = ALWAYS) -> Rule:
    """EIO for all these calls of a scope."""
    hooks = tuple(hook for call in calls for hook in hooks_of(call))
    operations = tuple(FAMILIES[CALLS[call][1]].number for call in calls)
    return Rule(operations=operations, hooks=hooks, scope=scope, errno=5, schedule=schedule)


def unit(path: str) -> Scope:
    return Scope(kind="unit", name=path, cgroup=path)


def other_unit(n: int) -> Scope:
    path = f"/other.slice/unit{n}.service"
    (CGROUPS / path.strip("/")).mkdir(exist_ok=True)
    return unit(path)


def other_process(n: int) -> Scope:
    return Scope(kind="process", name=str(n), pid=10_000_000 + n)


def ours(bench: Bench, engine: Engine) -> None:
    """Rules of the engine: loaded only, for others, for the caller."""
    calls = tuple(bench.calls)
    start = time.monotonic_ns()
    for call in calls:
        for hook in hooks_of(call):
            if refusal := engine.refusal(hook):
                raise RuntimeError(refusal)
    bench.say(timing="load", ns=[time.monotonic_ns() - start], programs=len(calls))
    bench.all_calls("groundfault", "loaded", 0)
    if engine.links():
        raise RuntimeError(f"attached without a rule: {engine.links()}")
    engine.add("elsewhere", rule_for(unit(VICTIM), ("connect",)))
    if any("file_" in name for name in engine.links().values()):
        raise RuntimeError(f"attached where no rule wants it: {engine.links()}")
    bench.loop("pread", "groundfault", "rule for another hook", 1)
    engine.remove("elsewhere")
    for kind, make in (("unit", other_unit), ("process", other_process)):
        there = 0
        for count in bench.counts:
            times = []
            for n in range(there, count):
                rule = rule_for(make(n), calls)
                start = time.monotonic_ns()
                engine.add(f"{kind}{n}", rule)
                times.append(time.monotonic_ns() - start)
            if there == 0:
                bench.say(timing="attach and add", kind=kind, ns=times[:1])
            bench.say(timing="add", kind=kind, rules=count, ns=times[0 if there else 1 :])
            there = count
            bench.all_calls("groundfault", f"other {kind}", count)
            if kind == "unit":
                bench.all_calls("groundfault", "other unit of the slice", count, cgroup=NEIGHBOUR)
        if kind == "unit":
            aimed(bench, engine, there)
        times = []
        for n in reversed(range(there)):
            start = time.monotonic_ns()
            engine.remove(f"{kind}{n}")
            times.append(time.monotonic_ns() - start)
        # The last one detaches the programs, too.
        bench.say(timing="remove", kind=kind, ns=times[:-1])
        bench.say(timing="remove and detach", kind=kind, ns=times[-1:])
        if kind == "unit":
            aimed(bench, engine, 0)
    if engine.links():
        raise RuntimeError(f"still attached: {engine.links()}")


def aimed(bench: Bench, engine: Engine, others: int) -> None:
    """One more rule, for the caller."""
    for situation, schedule in (("schedule says no", NEVER), ("injects", ALWAYS)):
        rule = rule_for(unit(VICTIM), tuple(bench.calls), schedule)
        bench.all_calls(
            "groundfault", situation, others + 1, fails=situation == "injects",
            before=lambda _, rule=rule: engine.add("victim", rule), after=lambda: engine.remove("victim"),
        )  # fmt: skip


class Program:
    """One of others.bpf.c on one system call."""

    def __init__(self, kind: str, call: str, target: int) -> None:
        function = function_of(CALLS[call][0])
        self.object = Object((HERE / "others.bpf.o").read_bytes(), kind)
        program = self.object.programs[f"other__{kind}"]
        program.choose(function if kind == "fmod_ret" else "")
        self.object.set_constants(struct.pack("=Q", target))
        self.object.load()
        self.link = program.attach_kprobe(function) if kind == "kprobe" else program.attach()

    def close(self) -> None:
        self.link.destroy()
        self.object.close()


def others(bench: Bench) -> None:
    """A program a fault on the call itself, where the kernel allows it."""
    for kind in ("kprobe", "fmod_ret"):
        for call in bench.calls:
            for count in bench.programs:
                programs = [Program(kind, call, 10_000_000 + n) for n in range(count)]
                bench.loop(call, kind, "other process", count)
                for program in programs:
                    program.close()
            aim: list[Program] = []

            def load(pids: Sequence[int], kind: str = kind, call: str = call, aim: list[Program] = aim) -> None:
                aim.extend(Program(kind, call, pid) for pid in pids)

            bench.loop(call, kind, "injects", bench.cpus, before=load, fails=True)
            for program in aim:
                program.close()


def tracing(bench: Bench) -> None:
    """strace on the call: says no, says yes, and on another call, by ptrace alone and with its seccomp filter."""
    for call in bench.calls:
        name = CALLS[call][0]
        no, yes = f"inject={name}:error=EIO:when=65535", f"inject={name}:error=EIO"
        other = ("-e", "trace=getppid", "-e", "inject=getppid:error=EIO")
        for situation, words in (
            ("schedule says no", ("-e", f"trace={name}", "-e", no)),
            ("other call", other),
            ("other call, seccomp-bpf", ("--seccomp-bpf", *other)),
        ):
            prefix = ("/usr/bin/strace", "-f", "-q", "-o", "/dev/null", *words)
            bench.loop(call, "strace", situation, 1, prefix=prefix, share=0.02)
        # The loop's own first openat and pread must not fail.
        when = {"pread": ":when=2+", "openat": ":when=2+"}.get(call, "")
        prefix = ("/usr/bin/strace", "-f", "-q", "-o", "/dev/null", "-e", f"trace={name}", "-e", yes + when)
        bench.loop(call, "strace", "injects", 1, prefix=prefix, share=0.02, fails=True)


def main() -> None:
    wanted = json.loads((HERE / "wanted.json").read_text())
    bench = Bench(wanted)
    os.sched_setaffinity(0, {0})
    bench.say(kernel=os.uname().release)
    bench.all_calls("nothing", "nothing loaded", 0)
    engine = Engine()
    ours(bench, engine)
    engine.close()
    bench.all_calls("nothing", "nothing loaded", 0)
    if wanted["others"]:
        others(bench)
    for situation, seccomp in (("other call", "other"), ("injects", "errno")):
        bench.all_calls("seccomp", situation, 1, seccomp=seccomp, fails=seccomp == "errno")
    if wanted["others"]:
        tracing(bench)
    bench.all_calls("nothing", "nothing loaded", 0)


if __name__ == "__main__":
    main()
