"""The cluster: a control plane on this machine, and nodes in namespaces. One at a time on a machine.

    with cluster(built, 3) as bed:
        bed.core.list_node()

Everything it starts dies with the process that started it. What a killed run has left is taken away by the next.
"""

from __future__ import annotations

import json
import shutil
import signal
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from kubernetes import client, config
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from labctl import paths
from labctl.lab.files import locked
from tests.kubernetes.bed import settings
from tests.kubernetes.bed.built import Built
from tests.kubernetes.bed.certificates import Authority
from tests.kubernetes.bed.images import APP, FOREVER, SANDBOX, make_image
from tests.kubernetes.bed.world import (
    Process,
    ip,
    make_bridge,
    make_groups,
    processes_in,
    remove_bridge,
    remove_groups,
    wait_for,
)

RUN = Path("/dev/shm/groundfault-kubernetes")
"""Everything the cluster writes; in memory, because etcd waits for each write to reach its disk."""

MOST = 5
READY_S = 240.0
_SCRIPT = Path(__file__).with_name("node.sh")


class Node:
    """A node of the cluster."""

    def __init__(self, number: int, built: Built) -> None:
        self.number, self.name = number, f"n{number}"
        self.address = settings.node_address(number)
        self.here, self.group = RUN / self.name, settings.cgroup_root(self.name)
        self._built = built
        self._process: Process | None = None

    def start(self) -> None:
        """Start it. It registers itself."""
        (self.here / "cni").mkdir(parents=True)
        (self.here / "static").mkdir()
        (self.here / "containerd.toml").write_text(settings.containerd(self.here, self._built.cni))
        (self.here / "cni" / "pods.conflist").write_text(json.dumps(settings.network(self.number)))
        (self.here / "kubelet.json").write_text(json.dumps(settings.kubelet(self.here, self.name, self.address)))
        make_groups(self.group)
        programs = str(self._built.program(""))
        script = (
            "sh",
            "-e",
            str(_SCRIPT),
            str(self.here),
            self.name,
            f"{self.address}/{settings.PREFIX}",
            programs,
        )
        kinds = ("--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child")
        self._process = Process(f"node {self.name}", ("unshare", *kinds, *script), self.here / "node.log")
        wire = f"gfk-{self.name}"
        ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", str(self.first_pid))
        ip("link", "set", wire, "master", settings.BRIDGE, "up")

    @property
    def first_pid(self) -> int:
        """The number, on this machine, of the first process of its namespaces."""
        process = self._process
        assert process is not None, f"{self.name} is not started"
        found = wait_for(f"namespaces of {self.name}", lambda: process.children() if process.alive() else [], 30)
        return found[0]

    def enter(self, *argv: str) -> tuple[str, ...]:
        """The command that runs a program in there."""
        return (
            "nsenter",
            f"--target={self.first_pid}",
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--ipc",
            "--",
            *argv,
        )

    def pids(self) -> set[int]:
        """Its pods' processes, by this machine's numbers."""
        return set(processes_in(self.group))

    def end(self) -> None:
        """As if its plug were pulled; nothing of it is left."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None
        remove_groups(self.group)


class Bed:
    """The cluster while it runs."""

    def __init__(self, built: Built, nodes: Sequence[Node]) -> None:
        self.built, self.nodes = built, {node.name: node for node in nodes}
        self.kubeconfig = RUN / "keys" / "admin.conf"
        made = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=made, persist_config=False)
        made.retries = False
        self.core: Any = client.CoreV1Api(client.ApiClient(made))
        self.apps: Any = client.AppsV1Api(client.ApiClient(made))

    def read(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A pod as JSON."""
        answer = self.core.read_namespaced_pod(name, namespace, _preload_content=False, _request_timeout=30)
        found: Mapping[str, Any] = json.loads(answer.data)
        return found

    def ready_nodes(self) -> set[str]:
        """The nodes that say they are ready."""
        try:
            answer = self.core.list_node(_preload_content=False, _request_timeout=10)
        except (ApiException, HTTPError):
            return set()
        return {
            str(one["metadata"]["name"])
            for one in json.loads(answer.data)["items"]
            if any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions", ()))
        }


@contextmanager
def cluster(built: Built, count: int) -> Iterator[Bed]:
    """A cluster of so many nodes, all of them ready; gone at the end. Raises LabError."""
    assert 1 <= count <= MOST
    with locked(paths.cache_dir() / "kubernetes" / "bed.lock", "the test bed", 1800, lambda text: None):
        clean()
        with ExitStack() as stack:
            stack.callback(clean)
            make_bridge()
            nodes = [Node(number, built) for number in range(1, count + 1)]
            _prepare(built, nodes)
            processes = []
            for name, argv in settings.control_plane(RUN, built.program("")).items():
                processes.append(Process(name, argv, RUN / f"{name}.log"))
                stack.callback(processes[-1].end)
                if name == "kube-apiserver":
                    _wait_for_api(processes)
            for node in nodes:
                stack.callback(node.end)
                node.start()
            bed = Bed(built, nodes)
            everybody = set(bed.nodes)

            def ready() -> bool:
                return all(one.alive() for one in processes) and bed.ready_nodes() == everybody

            wait_for("nodes", ready, READY_S, lambda: f"ready: {', '.join(sorted(bed.ready_nodes()))}")
            wait_for("the service account of pods", lambda: _has_account(bed), 60)
            yield bed


def clean() -> None:
    """Take away what a run has left that could not end in good order. Its processes have died with it."""
    for number in range(1, MOST + 1):
        remove_groups(settings.cgroup_root(f"n{number}"))
    remove_bridge()
    shutil.rmtree(RUN, ignore_errors=True)


def _prepare(built: Built, nodes: Sequence[Node]) -> None:
    (RUN / "keys").mkdir(parents=True, mode=0o700)
    (RUN / "images").mkdir()
    (RUN / "etcd").mkdir(mode=0o700)
    busybox = built.program("busybox")
    make_image(RUN / "images" / "sandbox.tar", SANDBOX, ("sleep", str(FOREVER)), busybox)
    make_image(RUN / "images" / "app.tar", APP, ("sleep", str(FOREVER)), busybox)
    authority = Authority(RUN / "keys")
    authority.issue("api", "kube-apiserver", reached_as=("kubernetes", "kubernetes.default.svc", settings.API))
    for file, name, group in (
        ("admin", "admin", "system:masters"),
        ("controller-manager", "system:kube-controller-manager", ""),
        ("scheduler", "system:kube-scheduler", ""),
    ):
        authority.issue(file, name, group)
        authority.kubeconfig(file, settings.SERVER)
    for node in nodes:
        authority.issue(f"node-{node.name}", f"system:node:{node.name}", "system:nodes", (node.name, node.address))
        authority.kubeconfig(f"node-{node.name}", settings.SERVER)


def _wait_for_api(processes: Sequence[Process]) -> None:
    """Until it has made its own roles, too: without these the other parts are refused, and end."""
    context = ssl.create_default_context(cafile=RUN / "keys" / "ca.crt")
    context.load_cert_chain(RUN / "keys" / "admin.crt", RUN / "keys" / "admin.key")

    def ready() -> bool:
        for process in processes:
            process.alive()
        try:
            with urlopen(f"{settings.SERVER}/readyz", context=context, timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_for("the API", ready, READY_S)


def _has_account(bed: Bed) -> bool:
    try:
        bed.core.read_namespaced_service_account("default", "default", _preload_content=False, _request_timeout=10)
    except ApiException:
        return False
    return True
