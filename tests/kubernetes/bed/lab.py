"""A lab whose nodes are those of the cluster, each with an agent in it, and the command line to use it."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from labctl.cli.main import main
from labctl.cli.session import Session
from labctl.cli.world import RealTools
from labctl.lab import store
from labctl.lab.model import Node as LabNode
from labctl.lab.ssh import SshLab
from labctl.lab.store import lab_dir
from labctl.pki import LabAuthority, write_all
from labctl.transport.base import Kind, Transport
from tests.kubernetes.bed.cluster import Bed, Node
from tests.kubernetes.bed.world import Process, wait_for
from tests.lab import state_home

LAB = "kube"
PORT = 7443
_AGENT = Path(__file__).with_name("agent.py")
_ROOT = _AGENT.parents[3]


@dataclass
class Done:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class _Told:
    """A transport that says beforehand what is asked."""

    def __init__(self, inner: Transport, before: Callable[[str], None]) -> None:
        self._inner, self._before = inner, before
        self.node = inner.node

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        self._before(method)
        return self._inner.call(method, request, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _Told:
        self._inner.__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        self._inner.__exit__(*what)


class _Tools(RealTools):
    """The real world, in which something happens just before an agent is asked for something."""

    def __init__(self, before: Mapping[str, Callable[[], None]]) -> None:
        super().__init__()
        self._before = dict(before)

    def transport(self, lab: str, node: LabNode, kind: Kind) -> Transport:
        def happen(method: str) -> None:
            self._before.pop(method, lambda: None)()

        return _Told(super().transport(lab, node, kind), happen)


@dataclass
class Lab:
    """The lab while it is there."""

    bed: Bed
    nodes: Mapping[str, LabNode]

    def run(self, *argv: str, before: Mapping[str, Callable[[], None]] | None = None) -> Done:
        """Run a labctl command line in this process. `before`: what happens just before a request."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err):
            code = main(("--lab", LAB, *argv), Session(_Tools(before or {})))
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
        return Done(code, *texts)

    def inject(self, fault: str, *argv: str, before: Mapping[str, Callable[[], None]] | None = None) -> Done:
        """Inject a fault with the cluster's kubeconfig."""
        return self.run("inject", fault, "--kubeconfig", str(self.bed.kubeconfig), *argv, before=before)

    def live(self) -> list[Any]:
        """The injections that are live."""
        found: list[Any] = self.run("injections", "--json").data["injections"]
        return found


@contextmanager
def lab_of(bed: Bed, home: Path) -> Iterator[Lab]:
    """A lab of the cluster's nodes. One has their name, one is known by its address, one by a label."""
    known = {
        "n1": LabNode(name="n1", address=bed.nodes["n1"].address, agent_port=PORT),
        "n2": LabNode(name="rack-b", address=bed.nodes["n2"].address, agent_port=PORT),
        "n3": LabNode(
            name="db", address=bed.nodes["n3"].address, agent_port=PORT, labels={"kubernetes-node": "n3"}
        ),
    }
    with state_home(home), ExitStack() as stack:
        provider = store.create_lab(LAB, "ssh")
        assert isinstance(provider, SshLab)
        provider.set_hosts(list(known.values()))
        authority = LabAuthority.load(lab_dir(LAB) / "pki")
        for name, node in known.items():
            stack.callback(_serve(bed.nodes[name], node, authority).end)
        for node in known.values():
            wait_for(f"the agent of {node.name}", partial(_answers, node), 120)
        yield Lab(bed, known)


def _serve(place: Node, node: LabNode, authority: LabAuthority) -> Process:
    here = place.here / "agent"
    (here / "config").mkdir(parents=True)
    (here / "config" / "node").write_text(f"{node.name}\n")
    write_all(here / "config" / "tls", authority.node_files(node.name))
    words = (str(here / "config"), str(here / "state"), "/run/groundfault", f"{place.address}:{PORT}")
    python = ("env", f"PYTHONPATH={_ROOT}", f"PATH={os.environ['PATH']}", sys.executable, str(_AGENT), *words)
    return Process(f"agent of {node.name}", place.enter(*python), here / "log")


def _answers(node: LabNode) -> bool:
    try:
        with socket.create_connection((node.address, node.agent_port), timeout=1):
            return True
    except OSError:
        return False
