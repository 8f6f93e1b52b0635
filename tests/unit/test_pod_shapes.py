"""Pods of old and new clusters, and which container of them is meant. Placing is below."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from labctl.errors import UsageError
from labctl.lab.addresses import known_addresses
from labctl.lab.model import Node
from labctl.pods.choosing import Wanted, choose_pods, wanted_pod
from labctl.pods.placing import LABEL, find_node, refuse_other_boot
from labctl.pods.shapes import ClusterNode, Pod, cluster_node_of, pod_of
from tests.unit.cluster_api import SHAPES, shape

ONE = Wanted("prod", name="x")


def _pod(name: str) -> Pod:
    return pod_of(shape(name))


def test_a_pod_of_1_20() -> None:
    pod = _pod("plain-1.20")
    assert (pod.title, pod.node, pod.phase, pod.uid[:4]) == ("prod/web-0", "w2", "Running", "aaaa")
    (only,) = pod.containers
    assert (only.name, only.kind, only.state, only.runtime) == ("app", "container", "running", "containerd")
    assert only.id == "0d" + "5e" * 31
    assert not (pod.deleting or pod.host_network or pod.control_plane or pod.runtime_class)


def test_a_pod_that_a_cluster_has_given() -> None:
    """Of tests/kubernetes: a pod of a StatefulSet, on a node in namespaces."""
    pod = _pod("recorded-1.20")
    ((_, found),) = choose_pods([pod], Wanted("shop", name="web-0"))
    assert (pod.title, pod.node, pod.control_plane, pod.host_network) == ("shop/web-0", "n1", "", False)
    assert (found.name, found.kind, found.runtime, len(found.id)) == ("app", "container", "containerd", 64)


def test_sidecars_and_debugging_containers_are_chosen_by_name_only() -> None:
    pod = _pod("sidecar-1.29")
    kinds = {one.name: (one.kind, one.state) for one in pod.containers}
    assert kinds == {
        "app": ("container", "running"),
        "migrate": ("init container", "terminated"),
        "proxy": ("sidecar", "running"),
        "debugger-x7": ("ephemeral container", "running"),
    }
    ((_, found),) = choose_pods([pod], ONE)
    assert found.name == "app"
    for name in ("proxy", "debugger-x7"):
        ((_, found),) = choose_pods([pod], Wanted("prod", name="x", container=name))
        assert found.name == name
    with pytest.raises(
        UsageError, match=r"container migrate of pod prod/web-sidecar does not run: terminated \(C"
    ):
        choose_pods([pod], Wanted("prod", name="x", container="migrate"))
    with pytest.raises(UsageError, match="has no container 'ap'") as unknown:
        choose_pods([pod], Wanted("prod", name="x", container="ap"))
    assert unknown.value.hint == "did you mean app?"


def test_the_ids_of_other_runtimes() -> None:
    pod = _pod("two-1.24")
    ids = {one.name: (one.runtime, one.id) for one in pod.containers}
    assert ids == {"app": ("cri-o", "0b" * 32), "side": ("docker", "0c" * 32)}
    assert pod.runtime_class == "kata"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crash-loop-1.30", r"container app of pod prod/web-crash does not run: waiting \(CrashLoopBackOff\)"),
        ("creating-1.30", r"does not run: waiting \(ContainerCreating\)"),
        ("completed-1.30", "pod prod/job-x is over: Succeeded"),
        ("pending-1.30", "pod prod/web-pending is on no node yet: Pending"),
        ("deleting-1.30", "pod prod/web-deleting is being deleted"),
        ("host-network-1.30", "exporter-q uses its node's network"),
        ("static-1.32", "belongs to the cluster itself: its label is tier=control-plane"),
        ("two-1.24", "has 2 containers: app, side"),
    ],
)
def test_what_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        choose_pods([_pod(name)], ONE)
    assert refused.value.hint


def test_what_is_refused_unless_asked_for() -> None:
    asked = Wanted("prod", name="x", host_network=True, control_plane=True)
    assert [one.name for _, one in choose_pods([_pod("host-network-1.30")], asked)] == ["exporter"]
    assert [one.name for _, one in choose_pods([_pod("static-1.32")], asked)] == ["kube-apiserver"]
    for half in (Wanted("p", name="x", host_network=True), Wanted("p", name="x", control_plane=True)):
        with pytest.raises(UsageError):
            choose_pods([_pod("static-1.32")], half)  # it is both


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"namespace": "kube-system"}, "namespace kube-system"),
        ({"annotations": {"kubernetes.io/config.mirror": "1"}}, "static pod"),
        ({"annotations": {"kubernetes.io/config.source": "file"}}, "static pod"),
        ({"labels": {"tier": "control-plane"}}, "tier=control-plane"),
    ],
)
def test_what_belongs_to_the_cluster(change: dict[str, Any], why: str) -> None:
    data = shape("plain-1.20")
    data["metadata"] |= change
    assert why in pod_of(data).control_plane


def test_a_critical_class_belongs_to_the_cluster() -> None:
    data = shape("plain-1.20")
    data["spec"]["priorityClassName"] = "system-cluster-critical"
    assert "system-cluster-critical" in pod_of(data).control_plane
    data["spec"]["priorityClassName"] = "important"
    assert pod_of(data).control_plane == ""


def test_a_selector_that_fits_several() -> None:
    pods = [_pod(name) for name in ("sidecar-1.29", "resize-1.33", "deleting-1.30", "completed-1.30")]
    with pytest.raises(UsageError, match="app=web fits 2 pods: prod/web-sidecar, prod/web-resize") as refused:
        choose_pods(pods, Wanted("prod", selector="app=web"))
    assert "--every-pod" in refused.value.hint
    both = choose_pods(pods, Wanted("prod", selector="app=web", every_pod=True))
    assert [pod.name for pod, _ in both] == ["web-sidecar", "web-resize"]
    with pytest.raises(UsageError, match="no pod runs that is one of the pods app=web in prod"):
        choose_pods(pods[2:], Wanted("prod", selector="app=web"))


def test_one_of_several_that_may_not_be_hit_refuses_all() -> None:
    pods = [_pod("plain-1.20"), _pod("host-network-1.30")]
    with pytest.raises(UsageError, match="hostNetwork"):
        choose_pods(pods, Wanted("prod", selector="a=b", every_pod=True))


@pytest.mark.parametrize("path", sorted(SHAPES.glob("*.json")), ids=lambda path: path.stem)
def test_no_part_of_a_status_is_needed_to_read_a_pod(path: Any) -> None:
    """Whatever a later version leaves out, or makes null, the pod is read; the container then is not running."""
    whole = shape(path.stem)
    for key in list(whole["status"]):
        nothing: tuple[object, ...] = (None, [], {})
        for replaced in nothing:
            data = deepcopy(whole)
            data["status"][key] = replaced
            assert pod_of(data).name == whole["metadata"]["name"]
    bare = {"metadata": whole["metadata"]}
    assert pod_of(bare).containers == ()
    with pytest.raises(ValueError, match="no name or uid"):
        pod_of({"kind": "Status"})


@pytest.mark.parametrize("identity", ["", "containerd://", "containerd://nothex", "abc", "containerd://../../x"])
def test_an_id_that_is_none(identity: str) -> None:
    data = shape("plain-1.20")
    data["status"]["containerStatuses"][0]["containerID"] = identity
    with pytest.raises(UsageError, match="has no id"):
        choose_pods([pod_of(data)], ONE)


@pytest.mark.parametrize(
    ("text", "namespace", "found"),
    [("prod/web-0", "", ("prod", "web-0")), ("web-0", "prod", ("prod", "web-0")), ("a/b", "a", ("a", "b"))],
)
def test_how_a_pod_is_written(text: str, namespace: str, found: tuple[str, str]) -> None:
    assert wanted_pod(text, namespace) == found


@pytest.mark.parametrize(
    ("text", "namespace"), [("web-0", ""), ("/web-0", ""), ("prod/", ""), ("a/b/c", ""), ("", "x"), ("a/b", "c")]
)
def test_how_it_is_not(text: str, namespace: str) -> None:
    with pytest.raises(UsageError, match="--pod"):
        wanted_pod(text, namespace)


# -- placing -----------------------------------------------------------------------------------------------------


def _lab(*nodes: Node) -> tuple[Node, ...]:
    return nodes or (
        Node(name="w1", address="10.0.0.1"),
        Node(name="w2", address="10.0.0.2", lab_addresses=("192.0.2.2", "fd00::2")),
    )


def _at(node: Node) -> tuple[str, ...]:
    return (*node.lab_addresses, node.address)


@pytest.mark.parametrize(
    ("name", "addresses", "found", "how"),
    [
        ("w1", (), "w1", "name"),
        ("w1.rack.example", ("10.0.0.1",), "w1", "name"),
        ("ip-10-0-0-2", ("10.0.0.2", "ip-10-0-0-2"), "w2", "address 10.0.0.2"),
        ("other", ("203.0.113.7", "FD00::2"), "w2", "address fd00::2"),
    ],
)
def test_a_node_by_name_or_address(name: str, addresses: tuple[str, ...], found: str, how: str) -> None:
    node, known_by = find_node(ClusterNode(name=name, addresses=addresses, boot_id=""), _lab(), _at)
    assert (node.name, known_by) == (found, how)


def test_a_label_says_it_where_nothing_else_does() -> None:
    lab = _lab(
        Node(name="w1", address="10.0.0.1", labels={LABEL: "worker-a"}), Node(name="worker-a", address="10.0.0.9")
    )
    there = ClusterNode(name="worker-a", addresses=("10.0.0.9",), boot_id="")
    assert find_node(there, lab, _at) == (lab[0], f"label {LABEL}")
    # A node with another name in the cluster is not taken for its own one.
    with pytest.raises(UsageError, match="is no node of this lab"):
        find_node(ClusterNode(name="w1", addresses=("10.0.0.1",), boot_id=""), lab, _at)


@pytest.mark.parametrize(
    ("name", "addresses", "message"),
    [
        (
            "k8s-a",
            ("203.0.113.7",),
            r"node k8s-a .*203.0.113.7\) is no node of this lab, which has w1 \(10.0.0.1\)",
        ),
        ("w1", ("10.0.0.2",), "has the name of w1 and an address of w2"),
        ("k8s-a", ("10.0.0.1", "10.0.0.2"), "is w1 and w2 by address"),
    ],
)
def test_nodes_that_are_nobody_or_two(name: str, addresses: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        find_node(ClusterNode(name=name, addresses=addresses, boot_id=""), _lab(), _at)
    assert LABEL in refused.value.hint


def test_a_node_of_the_same_name_that_is_another_machine() -> None:
    there = ClusterNode(name="w1", addresses=(), boot_id="1")
    refuse_other_boot(there, _lab()[0], "1")
    refuse_other_boot(there, _lab()[0], "")
    with pytest.raises(UsageError, match="node w1 of the cluster is not w1") as refused:
        refuse_other_boot(there, _lab()[0], "2")
    assert "another cluster" in refused.value.hint


def test_a_node_from_json() -> None:
    data = {
        "metadata": {"name": "w1"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "w1"}],
            "nodeInfo": {"bootID": "b", "swap": {"capacity": 1}},
            "runtimeHandlers": [{"name": "runc", "features": {"userNamespaces": True}}],
        },
    }
    assert cluster_node_of(data) == ClusterNode(name="w1", addresses=("10.0.0.1", "w1"), boot_id="b")
    assert cluster_node_of({"metadata": {"name": "w1"}}).addresses == ()
    with pytest.raises(ValueError, match="no name"):
        cluster_node_of({})


def test_the_addresses_by_which_a_node_may_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As written and looked up; this computer's own are everybody's."""

    def look_up(host: str, *_: object, **__: object) -> list[Any]:
        if host == "gone.example":
            raise OSError("no such host")
        found = {"db1.example": ["192.0.2.1", "fe80::1%eth0"], "localhost": ["127.0.0.1", "::1"]}.get(host, [host])
        return [(0, 0, 0, "", (one, 0)) for one in found]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    told = {
        name: known_addresses(Node(name="n", address=name, lab_addresses=("10.77.0.1",)))
        for name in ("db1.example", "localhost", "127.0.0.1", "gone.example")
    }
    assert told == {
        "db1.example": ("10.77.0.1", "db1.example", "192.0.2.1", "fe80::1"),
        "localhost": ("10.77.0.1",),
        "127.0.0.1": ("10.77.0.1",),
        "gone.example": ("10.77.0.1", "gone.example"),
    }
