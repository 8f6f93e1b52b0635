"""What a fault reaches: the witness makes every call of a family on a node, with the fault and after it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from node_agent.api.views import PlanView
from node_agent.injection import InjectionView
from tests.lab import ssh, ssh_argv
from tests.vm import calls

CGROUP = "coverage"
DIR = "/srv/data/coverage"
PROGRAM = "/usr/local/bin/calls-coverage"
ERRNO = "EUCLEAN"
"""What no call of the list answers by itself."""


@dataclass(frozen=True)
class Order:
    """One fault to be measured, on :data:`CGROUP`, and the family of calls that are made under it."""

    family: str
    fault: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """Answers by entry, while the fault was in force and after it was taken back."""

    order: Order
    plan: PlanView
    during: Mapping[str, str]
    after: Mapping[str, str]
    ended: InjectionView

    @property
    def there(self) -> frozenset[str]:
        """Entries that this kernel has: those that work without a fault."""
        return frozenset(entry for entry, answer in self.after.items() if works(answer))

    @property
    def failed(self) -> dict[str, str]:
        """What those answered that work without the fault and not with it."""
        return {e: answer for e, answer in self.during.items() if e in self.there and not works(answer)}


def works(answer: str) -> bool:
    return answer.split()[:1] == ["ok"]


class Witness:
    """`calls many`, again and again, in a control group of its own on a node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def until_ready(self) -> None:
        """Until its objects are made."""
        line = self._line()
        assert line == "ready", f"{line!r} in place of ready"

    def answers(self, entries: Sequence[str]) -> dict[str, str]:
        """Say go, and what each entry answered."""
        self.say()
        told = calls.answers("\n".join(self._line() for _ in entries))
        assert set(told) == set(entries), told
        return told

    def say(self) -> None:
        """The line that it waits for: go, or clear up."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


def install(node: Node, tmp: Path) -> None:
    """The witness onto a node."""
    put = ssh_argv(node, f"cat > {PROGRAM} && chmod 755 {PROGRAM} && mkdir -p /sys/fs/cgroup/{CGROUP}")
    subprocess.run(put, input=calls.build(tmp).read_bytes(), check=True, timeout=120)


def uninstall(node: Node) -> None:
    """The witness and its control group from a node."""
    ssh(node, f"rm -rf {DIR} {PROGRAM}; rmdir /sys/fs/cgroup/{CGROUP}")


def measure(node: Node, agent: AgentClient, orders: Sequence[Order]) -> Iterator[Measured]:
    """Each fault in turn."""
    with _witness(node, [order.family for order in orders]) as witness:
        for order in orders:
            yield _measure_one(agent, witness, order)


@contextmanager
def _witness(node: Node, families: Sequence[str]) -> Iterator[Witness]:
    """One that makes the calls of these families in turn, twice each, all by one login."""
    entries = calls.entries()
    where = f"--dir {DIR} --cgroup /sys/fs/cgroup/{CGROUP}"
    many = [f"{PROGRAM} many {' '.join(entries[family])} {where}" for family in families]
    argv = ssh_argv(node, "; ".join(word for one in many for word in (one, one)))
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Witness(process)
        finally:
            process.kill()


def _measure_one(agent: AgentClient, witness: Witness, order: Order) -> Measured:
    entries = calls.entries()[order.family]
    name = f"coverage-{secrets.token_hex(6)}"
    witness.until_ready()
    plan = agent.plan(name, order.fault, order.parameters)
    applied = agent.apply(name, order.fault, order.parameters, 300)
    assert applied.state == "active", applied
    during = witness.answers(entries)
    (ended,) = agent.recover((name,)).injections
    witness.say()
    witness.until_ready()
    after = witness.answers(entries)
    witness.say()
    return Measured(order, plan, during, after, ended)
