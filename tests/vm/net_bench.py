"""Two nodes for tests of network faults: one whose traffic is harmed, and a far one that answers the meter."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.fault import Evidence
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh_argv
from tests.user import until
from tests.vm import net_meter

PORT = 7000
PORTS = range(PORT, PORT + 4)
"""Where the far node answers, at each of its addresses."""

_NUMBERS = itertools.count(1)


def v4(number: int) -> str:
    """An address of the far node that a test may spoil; 0 is for the neighbour, who has to be untouched."""
    return f"10.77.0.{100 + number}"


def v6(number: int) -> str:
    return f"fd77::{100 + number}"


@dataclass
class NetBench:
    """The node with the faults and its agent, and the far one."""

    node: Node
    far: Node
    agent: AgentClient
    sockets: str
    mine: list[str] = field(default_factory=list)

    def argv(self, node: Node, *script: str) -> list[str]:
        """An ssh command by way of one connection: a login takes an emulated node a second or two."""
        shared = {"ControlMaster": "auto", "ControlPath": f"{self.sockets}/%p", "ControlPersist": "600"}
        program, *words = ssh_argv(node, *script)
        return [program, *(word for key, value in shared.items() for word in ("-o", f"{key}={value}")), *words]

    def sh(self, script: str, node: Node | None = None, check: bool = True, timeout: float = 120.0) -> str:
        """What a script prints on the node, or on another one."""
        argv = self.argv(node or self.node, script)
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
        assert not check or done.returncode == 0, (
            f"{script} ended with {done.returncode}: {done.stderr}{done.stdout}"
        )
        return done.stdout.strip()

    def inject(self, fault: str, **parameters: Any) -> InjectionView:
        name = f"net-{next(_NUMBERS)}"
        self.mine.append(name)
        view = self.agent.apply(name, fault, parameters, 600)
        assert view.state == "active" and view.evidence is not None and view.evidence.armed, view
        return view

    def evidence_of(self, *views: InjectionView) -> list[Evidence]:
        """Of each what the kernel shows now."""
        found = {one.id: one.evidence for one in self.agent.list(ids=tuple(v.id for v in views)).injections}
        return [evidence for view in views if (evidence := found[view.id]) is not None]

    def evidence(self, view: InjectionView) -> Evidence:
        (found,) = self.evidence_of(view)
        return found

    def seen(self, view: InjectionView) -> dict[str, bool]:
        """Of each sign that a real failure leaves, whether it was found."""
        return {sign.what: sign.seen for sign in self.evidence(view).signs}

    def recover(self, *views: InjectionView) -> None:
        for ended in self.agent.recover(tuple(view.id for view in views)).injections:
            assert (ended.state, ended.residue) == ("recovered", ()), ended

    def state(self) -> str:
        """Everything that network faults could leave behind, as the node's own tools tell it."""
        return self.sh("tc qdisc show; nft -s list ruleset; ip -o link show; for i in lo mgmt lan; do "
                       "tc filter show dev $i; tc filter show dev $i ingress; done")  # fmt: skip

    def udp(self, flows: list[str], count: int, gap_ms: float = 5.0, linger_ms: int = 800) -> list[net_meter.Flow]:
        """The meter's flows from the node, ADDRESS/PORT/SIZE each."""
        return net_meter.udp(self.sh, flows, count, gap_ms, linger_ms)

    def tcp(
        self, verb: str, size: int, address: str, port: int = PORT, deadline_ms: int = 20_000
    ) -> net_meter.Stream:
        return net_meter.tcp(self.sh, verb, size, f"{address}/{port}/0", deadline_ms)


@contextmanager
def net_bench(lab: LabUnderTest, near: str, far: str, addresses: int) -> Iterator[NetBench]:
    """Nodes fresh from the snapshot; the far one has so many addresses more of each family, and answers at all."""
    lab.reset()
    with ExitStack() as stack:
        sockets = stack.enter_context(TemporaryDirectory(prefix="net-"))
        agent = AgentClient(stack.enter_context(connect(lab.node(near), lab.authority)))
        bench = NetBench(lab.node(near), lab.node(far), agent, sockets)
        for node in (bench.node, bench.far):
            net_meter.install(bench.argv(node))
            stack.callback(subprocess.run, [*bench.argv(node)[:-2], "-O", "exit", "nobody"], capture_output=True)
        numbers = range(addresses)
        more = [f"ip addr add {a} dev lan nodad" for n in numbers for a in (f"{v4(n)}/24", f"{v6(n)}/64")]
        bench.sh("; ".join(more), bench.far)
        ports = " ".join(map(str, PORTS))
        bench.sh(f"systemd-run --quiet --unit=net-meter {net_meter.PLACE} serve {ports}", bench.far)
        bench.sh("ip addr add fd77::1/64 dev lan nodad")
        first = [f"{a}/{PORT}/64" for n in numbers for a in (v4(n), v6(n))]
        until("everything answers", lambda: all(not f.lost for f in bench.udp(first[:16], 3, 20.0)))
        yield bench
    lab.reset()


@contextmanager
def left_as_it_was(bench: NetBench) -> Iterator[None]:
    """Around each test: whatever it did, the node's tools say the same as before, and there is no residue."""
    before = bench.state()
    bench.mine.clear()
    yield
    live = tuple(view.id for view in bench.agent.list().injections if view.id in bench.mine)
    if live:
        bench.agent.recover(live)
    assert bench.agent.residue() == ()
    after = bench.state()
    assert after == before, f"{before}\n->\n{after}"
