"""An agent without a kernel: the real service and both its edges over a made-up injector and machine."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from labctl.lab.model import Node
from labctl.pki import LabAuthority
from node_agent.errors import AgentError, NotFoundError
from node_agent.fault import Capability, Evidence, Hit, Missing
from node_agent.host import Host
from node_agent.host.mounting import Repair
from node_agent.injection import InjectionView, Plan
from node_agent.residue import Difference
from node_agent.server import TlsFiles, start_server
from node_agent.service import Service

WALL = 1.8e9


class FakeMachine:
    """The little of a host that the service itself touches. Its wall clock is `offset_s` from the test's."""

    def __init__(self, clock: Callable[[], float] = lambda: WALL) -> None:
        self.clock, self.offset_s = clock, 0.0
        self.set_to: list[float] = []
        self.refusal: Exception | None = None

    def read_text(self, path: str) -> str:
        texts = {"/proc/meminfo": "MemTotal: 2048000 kB\n", "/etc/os-release": 'PRETTY_NAME="Debian"\n'}
        return texts.get(path, "")

    def boot_id(self) -> str:
        return "boot-1"

    def boottime(self) -> float:
        return 42.0

    def wall(self) -> float:
        return self.clock() + self.offset_s

    def set_time(self, unix_s: float) -> None:
        if self.refusal:
            raise self.refusal
        self.set_to.append(unix_s)
        self.offset_s = unix_s - self.clock()


HIT = Hit(
    sequence=2**63, time_us=42_000_000, pid=7, tid=8, comm="postgres", call="pread64", where="/srv/a", answer="EIO"
)


def view(injection_id: str, **changes: Any) -> InjectionView:
    fields: dict[str, Any] = {
        "id": injection_id, "node": "w1", "fault": "slow_disk", "parameters": {"delay_ms": 5}, "state": "active",
        "target": "disk vdb", "backend": "dm", "lease_s": 900, "expires_in_s": 899.5, "age_s": 0.5,
        "evidence": Evidence(
            armed=True, hits=3, counters={"seen": 4}, log=("line",), notes=("n",), samples=(HIT,)
        ),
    }  # fmt: skip
    return InjectionView(**(fields | changes))


class FakeInjector:
    """Answers like an injector, records what it was asked, and fails where `fail` says so."""

    def __init__(self) -> None:
        self.live: dict[str, InjectionView] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.fail: dict[str, Exception] = {}
        self.hold: threading.Event | None = None
        self.stopped = False
        self.lock = threading.Lock()
        self.machine = FakeMachine()

    def _note(self, name: str, *arguments: Any) -> None:
        with self.lock:
            self.asked.append((name, *arguments))
        if name in self.fail:
            raise self.fail[name]

    @property
    def probing(self) -> FakeInjector:
        return self

    def end(self, within_s: float) -> bool:
        self._note("end probing")
        return True

    def capabilities(self, again: bool = False) -> Mapping[str, Capability]:
        self._note("capabilities", again)
        return {"dm": Capability(name="dm", available=False, reason="no module", remedy="modprobe")}

    def support(self) -> tuple[tuple[str, tuple[Missing, ...]], ...]:
        return (
            ("slow_disk", (Missing(capability="dm", reason="no module", remedy="modprobe"),)),
            ("full_disk", ()),
        )

    def plan(self, injection_id: str, fault_name: str, parameters: Mapping[str, Any]) -> Plan:
        self._note("plan", injection_id, fault_name, dict(parameters))
        raise NotImplementedError

    def apply(
        self, injection_id: str, fault_name: str, parameters: Mapping[str, Any], lease_s: float = 0
    ) -> InjectionView:
        self._note("apply", injection_id, fault_name, dict(parameters), lease_s)
        self.live[injection_id] = view(injection_id, fault=fault_name, parameters=dict(parameters))
        if self.hold:
            self.hold.wait(5)
        return self.live[injection_id]

    def extend(self, injection_id: str, lease_s: float) -> InjectionView:
        self._note("extend", injection_id, lease_s)
        return self.view(injection_id)

    def recover(self, ids: tuple[str, ...] | None, why: str) -> tuple[InjectionView, ...]:
        self._note("recover", ids, why)
        chosen = tuple(self.live) if ids is None else ids
        for one in chosen:
            self.live[one] = self.view(one).model_copy(update={"state": "recovered", "reason": why})
        return tuple(self.live[one] for one in chosen)

    def set_clock(self, unix_s: float) -> None:
        self.machine.set_time(unix_s)

    def set_stopped(self, stopped: bool) -> None:
        self.stopped = stopped

    def injections(self, ended: bool = False, ids: tuple[str, ...] = ()) -> tuple[InjectionView, ...]:
        self._note("list", ended, ids)
        return tuple(v for v in self.live.values() if not ids or v.id in ids)

    def view(self, injection_id: str) -> InjectionView:
        if injection_id not in self.live:
            raise NotFoundError(f"no injection {injection_id} on this node", field="id")
        return self.live[injection_id]

    def repair_disk(self, injection_id: str, disk: str) -> Repair:
        return Repair((f"checked {disk or 'data'}",), (f"{injection_id}: one file",))

    def residue(self) -> tuple[Difference, ...]:
        return (Difference(category="dm", item="x", before="", after="linear", injection="inj-1"),)


class FakeAgent:
    """A service named w1 over fakes."""

    def __init__(self, clock: Callable[[], float] = lambda: WALL, name: str = "w1") -> None:
        self.injector, self.machine = FakeInjector(), FakeMachine(clock)
        self.injector.machine = self.machine
        self.service = Service(self.injector, cast("Host", self.machine), name, self.machine.wall)

    @contextmanager
    def serving(self, authority: LabAuthority, files: Mapping[str, bytes] | None = None) -> Iterator[Node]:
        """gRPC on loopback; `files` replace the certificate that the authority would give the node."""
        found = files or authority.node_files("w1")
        tls = TlsFiles(found["ca.pem"], found["node.pem"], found["node.key"])
        server, port = start_server(self.service, tls, "127.0.0.1:0")
        try:
            yield Node(name="w1", address="127.0.0.1", agent_port=port)
        finally:
            self.service.close()
            server.stop(0).wait(5)


def with_client(authority: LabAuthority, directory: Path, certificate: bytes, key: bytes) -> LabAuthority:
    """The same authority, showing another client certificate."""
    shutil.copytree(authority.directory, directory)
    (directory / "client.pem").write_bytes(certificate)
    (directory / "client.key").write_bytes(key)
    return LabAuthority.load(directory)


def failing(error: type[AgentError]) -> AgentError:
    return error("what went wrong", field="path", allowed="something else")
