"""labctl against a real cluster: from pods to processes, and what becomes of pods meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.pods.shapes import pod_of
from tests.kubernetes import pods
from tests.kubernetes.bed.certificates import Authority
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.lab import Done, Lab
from tests.kubernetes.bed.world import wait_for

PAUSE = "process_pause"


@pytest.fixture(scope="module", autouse=True)
def shop(bed: Bed) -> None:
    """A namespace with a pod on each node, and a set."""
    bed.core.create_namespace({"metadata": {"name": pods.SPACE}})
    bed.core.patch_namespaced_service_account("default", "default", {"automountServiceAccountToken": False})
    wait_for("a service account", lambda: _account(bed), 30)
    bed.apps.create_namespaced_stateful_set(pods.SPACE, pods.stateful_set("web"))
    pods.make(
        bed,
        pods.pod("alone", "n1", pods.container("app", "alone", "48Mi"), labels={"tier": "one"}),
        pods.pod("two", "n2", pods.container("app", "two-app"), pods.container("side", "two-side")),
        pods.pod("exporter", "n3", hostNetwork=True, labels={"tier": "many"}),
        pods.pod("a", "n1", labels={"tier": "many"}),
        pods.pod("b", "n3", labels={"tier": "few"}),
        pods.pod("c", "n2", labels={"tier": "few"}),
    )
    pods.runs(bed, "web-0")


def _account(bed: Bed) -> bool:
    names = [one.metadata.name for one in bed.core.list_namespaced_service_account(pods.SPACE).items]
    return "default" in names


@pytest.fixture(autouse=True)
def healed(lab: Lab) -> Iterator[None]:
    """Nothing is planted before and after."""
    yield
    assert lab.run("recover", "--all").code == 0
    assert lab.live() == []


def planned(lab: Lab, *argv: str) -> Any:
    """The way to a pod, from a plan that changes nothing."""
    done = lab.inject(PAUSE, *argv, "--plan", "--json")
    assert done.code == 0, done.err
    assert lab.live() == []
    return done.data["pods"]


def refused(done: Done, *words: str) -> None:
    assert done.code == 64, (done.code, done.out, done.err)
    for word in words:
        assert word in done.err


@pytest.mark.parametrize(
    ("argv", "mark", "node", "known_by"),
    [
        (("--pod", "shop/alone"), "alone", "n1", "name"),
        (("--pod", "shop/two", "--container", "side"), "two-side", "rack-b", "address 172.30.77.12"),
        (("--selector", "tier=one", "--namespace", "shop"), "alone", "n1", "name"),
        (("--pod", "b", "--namespace", "shop"), "b", "db", "label kubernetes-node"),
    ],
)
def test_from_a_pod_to_its_processes(
    lab: Lab, bed: Bed, argv: tuple[str, ...], mark: str, node: str, known_by: str
) -> None:
    (link,) = planned(lab, *argv)
    assert (link["node"], link["known_by"]) == (node, known_by)
    pod = bed.read("shop", link["pod"].partition("/")[2])
    assert link["uid"] == pod["metadata"]["uid"] and link["cluster_node"] == pod["spec"]["nodeName"]
    processes = pods.marked(mark)
    assert len(processes) >= 2 and set(processes.values()) == {link["cgroup"]}
    assert link["uid"] in link["cgroup"] and link["cgroup"].endswith(link["container_id"])
    assert len(set(processes) & bed.nodes[link["cluster_node"]].pids()) >= 2
    text = lab.inject(PAUSE, *argv, "--plan").out
    for word in (link["pod"], link["uid"], link["container_id"], link["cgroup"], f"calls {link['cluster_node']}"):
        assert word in text


def test_a_container_stands_still_and_goes_on(lab: Lab) -> None:
    (link,) = planned(lab, "--pod", "shop/two", "--container", "app")
    (beside,) = planned(lab, "--pod", "shop/two", "--container", "side")
    done = lab.inject(PAUSE, "--pod", "shop/two", "--container", "app", "--json")
    assert done.code == 0, done.err
    (injection,) = done.data["injections"]
    assert injection["evidence"]["armed"] and injection["node"] == "rack-b"
    assert pods.frozen(link["cgroup"]) and not pods.frozen(beside["cgroup"])
    assert lab.run("recover", injection["id"]).code == 0
    assert not pods.frozen(link["cgroup"])
    assert lab.run("node", "residue", "rack-b").code == 0


def test_a_container_is_killed_and_restarted(lab: Lab, bed: Bed) -> None:
    before = pods.container_id(bed.read("shop", "c"))
    (old,) = planned(lab, "--pod", "shop/c")
    done = lab.inject("process_kill", "--pod", "shop/c", "--json")
    assert done.code == 0, done.err
    after = pods.runs(bed, "c", other_than=before)
    assert lab.run("recover", done.data["id"]).code == 0
    assert after["status"]["containerStatuses"][0]["restartCount"] == 1
    assert after["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    (new,) = planned(lab, "--pod", "shop/c")
    assert new["uid"] == old["uid"] and new["container_id"] != old["container_id"] and new["restarts"] == 1
    assert new["cgroup"] != old["cgroup"] and set(pods.marked("c").values()) == {new["cgroup"]}
    refused(lab.run("inject", PAUSE, "--node", "rack-b", "--container", old["container_id"]), "does not run")


def test_a_restart_between_plan_and_apply(lab: Lab, bed: Bed) -> None:
    before = pods.container_id(bed.read("shop", "a"))

    def restart() -> None:
        (first, *_) = sorted(pods.marked("a"))
        _kill(first)
        pods.runs(bed, "a", other_than=before)

    refused(
        lab.inject(PAUSE, "--pod", "shop/a", before={"Apply": restart}),
        "container app of pod shop/a has restarted (running); nothing is planted",
    )
    assert lab.live() == []
    assert lab.inject(PAUSE, "--pod", "shop/a").code == 0


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["Plan", "Apply"])
def test_a_pod_that_moves_between_plan_and_apply(lab: Lab, bed: Bed, method: str) -> None:
    """It is known by the same name afterwards, on another node. Before its plan, and in the last moment."""
    (old,) = planned(lab, "--pod", "shop/web-0")
    done = lab.inject(PAUSE, "--pod", "shop/web-0", before={method: pods.moves(bed, "web-0")})
    refused(done, "pod shop/web-0 has moved from", "nothing is planted")
    assert lab.live() == []
    (new,) = planned(lab, "--pod", "shop/web-0")
    assert new["node"] != old["node"] and new["uid"] != old["uid"]
    assert lab.inject(PAUSE, "--pod", "shop/web-0").code == 0
    assert [one["node"] for one in lab.live()] == [new["node"]]
    assert pods.frozen(new["cgroup"])


def test_memory_runs_out(lab: Lab, bed: Bed) -> None:
    """The kernel kills; the container of before is refused while there is none, and the new one is found."""
    before = pods.container_id(bed.read("shop", "alone"))
    (old,) = planned(lab, "--pod", "shop/alone")
    pods.eat(bed, "alone")
    after = pods.runs(bed, "alone", other_than=before)
    last = after["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("OOMKilled", 137)
    (new,) = planned(lab, "--pod", "shop/alone")
    assert new["container_id"] != old["container_id"] and new["uid"] == old["uid"]
    # A second time at once: the kubelet waits ten seconds, and there is no container meanwhile.
    pods.eat(bed, "alone")
    wait_for("a container that waits", lambda: "waiting" in pods.status(bed, "alone")["state"], 30)
    assert pods.status(bed, "alone")["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    refused(lab.inject(PAUSE, "--pod", "shop/alone"), "does not run: waiting (CrashLoopBackOff)")
    pods.runs(bed, "alone", other_than=f"containerd://{new['container_id']}")


def test_what_is_not_sure_is_refused(lab: Lab) -> None:
    refused(lab.inject(PAUSE, "--pod", "shop/two"), "has 2 containers: app, side")
    refused(lab.inject(PAUSE, "--selector", "tier=few", "--namespace", "shop"), "fits 2 pods: shop/b, shop/c")
    refused(lab.inject(PAUSE, "--selector", "tier=none", "--namespace", "shop"), "no pod runs")
    refused(lab.inject(PAUSE, "--selector", "tier==,", "--namespace", "shop"), "the cluster refuses")
    refused(lab.inject(PAUSE, "--pod", "shop/nobody"), "has no pod shop/nobody")
    links = planned(lab, "--selector", "tier=few", "--namespace", "shop", "--every-pod", "--exceed-limits")
    assert sorted(link["node"] for link in links) == ["db", "rack-b"]


def test_what_shares_the_network_of_its_node(lab: Lab) -> None:
    refused(lab.inject(PAUSE, "--pod", "shop/exporter"), "hostNetwork", "--allow-host-network")
    (link,) = planned(lab, "--pod", "shop/exporter", "--allow-host-network")
    assert set(pods.marked("exporter").values()) == {link["cgroup"]}


def test_a_static_pod_belongs_to_the_cluster(lab: Lab, bed: Bed) -> None:
    """Its uid in the cluster is not the one that its node knows, and that its control group has."""
    name = pods.static(bed, "n2", "keeper")
    pods.runs(bed, name, space="kube-system")
    refused(lab.inject(PAUSE, "--pod", f"kube-system/{name}"), "belongs to the cluster", "--allow-control-plane")
    (link,) = planned(lab, "--pod", f"kube-system/{name}", "--allow-control-plane")
    own = bed.read("kube-system", name)["metadata"]["annotations"]["kubernetes.io/config.hash"]
    assert own in link["cgroup"] and link["uid"] not in link["cgroup"]
    assert set(pods.marked("keeper").values()) == {link["cgroup"]}


def test_a_node_whose_kubelet_does_not_run_there(lab: Lab, bed: Bed) -> None:
    """Another cluster may have nodes of the same names: its kubelet has another boot's id."""
    found = bed.core.read_node("n1", _preload_content=False)
    boot = json.loads(found.data)["status"]["nodeInfo"]["bootID"]
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_kubeconfig_of_another_authority(lab: Lab, bed: Bed, tmp_path: Path) -> None:
    """The address is right, and the certificates are of another cluster."""
    authority = Authority(tmp_path)
    authority.issue("admin", "admin", "system:masters")
    strange = authority.kubeconfig("admin", "https://172.30.77.1:6443")
    done = lab.run("inject", PAUSE, "--kubeconfig", str(strange), "--pod", "shop/alone")
    assert done.code == 70 and "does not answer" in done.err and "certificate" in done.err.lower()
    half = json.loads(strange.read_text()) | {"clusters": json.loads(bed.kubeconfig.read_text())["clusters"]}
    strange.write_text(json.dumps(half))
    refused(lab.run("inject", PAUSE, "--kubeconfig", str(strange), "--pod", "shop/alone"), "does not let")


def test_the_shape_in_the_unit_tests_is_that_of_a_cluster(bed: Bed) -> None:
    """What the unit tests take for a pod of 1.20 has the same keys where labctl looks."""
    pod = pod_of(bed.read("shop", "b"))
    (only,) = pod.containers
    assert (pod.title, pod.node, pod.phase, only.state, only.runtime) == (
        "shop/b", "n3", "Running", "running", "containerd",
    )  # fmt: skip
    assert len(only.id) == 64
