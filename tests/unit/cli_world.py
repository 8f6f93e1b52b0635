"""A lab of plain objects for the command line: real commands, real client, real service, toy injectors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import Certificate
from google.protobuf.message import Message

from labctl.cli.main import main
from labctl.cli.session import Session
from labctl.errors import LabError
from labctl.hardware.injector import HardwareInjector
from labctl.lab.model import LabOptions, Node, NodeStatus, Provider, Ready
from labctl.lab.remote import Remote
from labctl.lab.selfcheck import Check
from labctl.lab.ssh import SshLab
from labctl.pki import LabAuthority
from labctl.pods.cluster import Cluster, KubernetesCluster
from labctl.power.model import PowerState
from labctl.progress import Progress, Task
from labctl.transport.base import ClosingTransport, ConnectError, Kind, NoAnswerError, answered_error
from labctl.transport.client import AgentClient
from labctl.transport.host_keys import Trusts, nobody
from node_agent.api import agent_pb2 as pb
from node_agent.api.convert import error_message
from node_agent.audit import AuditLog
from node_agent.caller import Caller
from node_agent.errors import AgentError
from node_agent.service import Service
from tests.contract.simulated import SimulatedHost, fresh_kernel
from tests.unit.toys import ToyInjector

Before = Callable[[str, str], None]
"""Called with node and method before a request reaches the agent; may raise what a transport raises."""


class DirectTransport(ClosingTransport):
    """Straight into the service of an agent in this process."""

    def __init__(self, node: Node, service: Service, before: Before) -> None:
        self.node, self._service, self._before = node, service, before

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        self._before(self.node.name, method)
        try:
            return self._service.call(method, request, Caller("test"))
        except AgentError as error:
            raise answered_error(self.node.name, error_message(error)) from None

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        self._before(self.node.name, "Watch")
        try:
            yield from self._service.watch(request, Caller("test"), lambda seconds: False)
        except AgentError as error:
            raise answered_error(self.node.name, error_message(error)) from None

    def close(self) -> None:
        pass


class ToyLab:
    """A provider whose machines are switches."""

    kind = "qemu"

    def __init__(self) -> None:
        self.made: LabOptions | None = None
        self.count = 0
        """How many nodes, where that is more than `labctl up` would make."""
        self.off: set[str] = set()
        self.calls: list[str] = []
        self.console_file: Path | None = None
        self.labels: dict[str, Mapping[str, str]] = {}
        self.web: dict[str, str] = {}

    def up(self, options: LabOptions | None, ready: Ready, progress: Progress) -> None:
        self.made = options or self.made or LabOptions()
        self.calls.append(f"up {options}")
        for node in self.nodes():
            ready(node)

    def reset(self, ready: Ready, progress: Progress) -> None:
        self.calls.append("reset")

    def down(self, progress: Progress) -> None:
        self.calls.append("down")
        self.off = {node.name for node in self.nodes()}

    def destroy(self, progress: Progress) -> None:
        self.calls.append("destroy")

    def nodes(self) -> tuple[Node, ...]:
        count = self.count or (self.made or LabOptions()).nodes
        return tuple(
            Node(
                name=f"w{n}", address="127.0.0.1", ssh_port=2200 + n, labels=self.labels.get(f"w{n}", {}),
                lab_addresses=(f"10.77.0.{n}", f"fe80::{n}"),
            )
            for n in range(1, count + 1)
        )  # fmt: skip

    def status(self) -> tuple[NodeStatus, ...]:
        return tuple(
            NodeStatus(node=node, running=node.name not in self.off, web=self.web.get(node.name, ""))
            for node in self.nodes()
        )

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        self.labels[name] = labels

    def console(self, name: str) -> Path | None:
        return self.console_file

    def power(self, name: str) -> ToyPower:
        return ToyPower(self, name)


@dataclass
class ToyPower:
    """The power switch of a machine that is a switch."""

    lab: ToyLab
    what: str
    real: bool = False

    def state(self) -> PowerState:
        return "off" if self.what in self.lab.off else "on"

    def off(self, graceful: bool, task: Task) -> bool:
        self.lab.calls.append(f"{'shutdown' if graceful else 'off'} {self.what}")
        was_on = self.state() == "on"
        self.lab.off.add(self.what)
        return was_on

    def on(self, task: Task) -> bool:
        self.lab.calls.append(f"on {self.what}")
        was_off = self.state() == "off"
        self.lab.off.discard(self.what)
        return was_off


@dataclass
class Done:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@dataclass
class World:
    """:class:`labctl.cli.session.Tools` over toys."""

    capsys: pytest.CaptureFixture[str]
    directory: Path
    labs: dict[str, Provider] = field(default_factory=dict)
    injectors: dict[str, ToyInjector] = field(default_factory=dict)
    below: dict[str, HardwareInjector] = field(default_factory=dict)
    audits: dict[str, AuditLog] = field(default_factory=dict)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    logins: dict[str, Remote] = field(default_factory=dict)
    down: dict[str, str] = field(default_factory=dict)
    trouble: Before = lambda node, method: None
    executed: list[Sequence[str]] = field(default_factory=list)
    checks: tuple[Check, ...] = (Check(name="python", verdict="ok", detail="3.11"),)

    def run(self, *argv: str) -> Done:
        """Run a labctl command line."""
        code = main(argv, Session(self))
        captured = self.capsys.readouterr()
        return Done(code, captured.out, captured.err)

    @property
    def lab(self) -> ToyLab:
        found = self.labs["default"]
        assert isinstance(found, ToyLab)
        return found

    def injector(self, node: str) -> ToyInjector:
        return self.injectors.setdefault(node, ToyInjector(node))

    def list_labs(self) -> Sequence[str]:
        return tuple(self.labs)

    def open_lab(self, name: str) -> Provider:
        return self.labs[name]

    def create_lab(self, name: str, kind: str) -> Provider:
        self.labs[name] = SshLab(self.directory / name) if kind == "ssh" else ToyLab()
        return self.labs[name]

    def pki_dir(self, lab: str) -> Path:
        return self.directory / lab / "pki"

    def authority(self, lab: str) -> LabAuthority:
        return LabAuthority.load(self.pki_dir(lab))

    def certificate(self, lab: str, node: Node) -> Certificate | None:
        return self.certificates.get(node.name)

    def transport(self, lab: str, node: Node, kind: Kind) -> DirectTransport:
        host = SimulatedHost(fresh_kernel())
        audit = self.audits.get(node.name)
        service = Service(self.injector(node.name), host, node.name, clock=time.time, audit=audit)
        return DirectTransport(node, service, self._before)

    def _before(self, node: str, method: str) -> None:
        if self.down.get(node) == "lost":
            raise NoAnswerError(f"{node} did not answer {method} within 1 s")
        if node in self.down:
            raise ConnectError("refused", f"{node} at 127.0.0.1:7443: nothing listens there", "is the node up?")
        self.trouble(node, method)

    def ready(self, lab: str) -> Ready:
        return lambda node: None

    def answering(self, lab: str) -> Ready:
        return lambda node: None

    def hardware(
        self, lab: str, node: Node, agent: Callable[[], AgentClient], progress: Progress
    ) -> HardwareInjector | None:
        return self.below.get(node.name)

    def limits_file(self, lab: str) -> Path:
        return self.directory / f"limits-{lab}.json"

    def check_machine(self, progress: Progress) -> tuple[Check, ...]:
        return self.checks

    @contextmanager
    def remote(self, node: Node, trusts: Trusts = nobody) -> Iterator[Remote]:
        if node.name not in self.logins:
            raise LabError(f"{node.name} has no SSH")
        yield self.logins[node.name]

    def cluster(self, kubeconfig: Path | None, context: str) -> Cluster:
        return KubernetesCluster(kubeconfig, context)

    def execute(self, argv: Sequence[str]) -> int:
        self.executed.append(argv)
        return 7
