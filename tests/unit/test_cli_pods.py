"""`labctl inject --pod`: a cluster's API over HTTP, the official client, toy agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli_world import Done, World
from tests.unit.cluster_api import ClusterApi, kubeconfig, served, shape

BOOT = "boot-1"
"""That of the toys' machines."""

NEW = "containerd://" + "77" * 32
GROUP = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-{}.scope"


class Bench:
    """A cluster of which the lab's nodes are nodes, with pods that run there."""

    def __init__(self, world: World, api: ClusterApi, config: Path) -> None:
        self.world, self.api, self.config = world, api, config
        for number in (1, 2, 3):
            api.add_node(f"w{number}", f"10.77.0.{number}", boot_id=BOOT)
        self.web = self.run_pod("plain-1.20")

    def run_pod(self, name: str, **metadata: Any) -> dict[str, Any]:
        """A pod of this shape, whose containers run on its node."""
        pod = self.api.add(shape(name), **metadata)
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
            for one in pod["status"].get(kind, ()):
                if "running" in one["state"]:
                    identity = one["containerID"].partition("://")[2]
                    self.world.injector(pod["spec"]["nodeName"]).containers[identity] = GROUP.format(identity)
        return pod

    def status(self) -> dict[str, Any]:
        """The status of the container of prod/web-0."""
        found: dict[str, Any] = self.web["status"]["containerStatuses"][0]
        return found

    @property
    def id(self) -> str:
        return str(self.status()["containerID"]).partition("://")[2]

    def inject(self, *argv: str) -> Done:
        return self.world.run("inject", "toy_stall", "--kubeconfig", str(self.config), *argv)

    def live(self) -> dict[str, dict[str, Any]]:
        """Parameters of what is live, by node."""
        found = sorted(self.world.injectors.items())
        return {name: dict(one.parameters) for name, i in found for one in i.injections()}

    def before(self, method: str, change: Any, only_once: bool = True) -> None:
        """Do that just before an agent gets such a request."""
        done: list[str] = []

        def trouble(node: str, asked: str) -> None:
            if asked == method and not (done and only_once):
                done.append(node)
                change()

        self.world.trouble = trouble


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Iterator[Bench]:
    with served(ClusterApi()) as api:
        yield Bench(world, api, kubeconfig(tmp_path / "kubeconfig", api.url, "prod"))


def refused(done: Done, *words: str) -> None:
    assert done.code == 64, (done.code, done.err)
    for word in words:
        assert word in done.err
    assert len(done.err.strip().splitlines()) <= 2


def test_from_a_pod_to_the_control_group(bench: Bench) -> None:
    planned = bench.inject("--pod", "prod/web-0", "--plan")
    assert planned.code == 0 and bench.live() == {}
    for text in ("pod prod/web-0", "uid", "aaaaaaaa-2222", f"w2, which {bench.api.url} calls w2 (by name)",
                 f"app containerd://{bench.id}", GROUP.format(bench.id)):  # fmt: skip
        assert text in planned.out
    data = bench.inject("--pod", "prod/web-0", "--plan", "--json").data
    assert data["nodes"] == ["w2"] and data["chosen"] == "pod prod/web-0" and data["changed"] is False
    (link,) = data["pods"]
    assert link == {
        "pod": "prod/web-0", "uid": "aaaaaaaa-2222-4333-8444-555555555555", "cluster": bench.api.url,
        "cluster_node": "w2", "node": "w2", "known_by": "name", "container": "app", "kind": "container",
        "runtime": "containerd", "container_id": bench.id, "restarts": 0, "runtime_class": "",
        "cgroup": GROUP.format(bench.id),
    }  # fmt: skip
    done = bench.inject("--pod", "prod/web-0", "--json")
    assert done.data["pods"] == [link] and [one["node"] for one in done.data["injections"]] == ["w2"]
    (placed,) = bench.live().items()
    assert placed[0] == "w2" and {**placed[1], "seed": 0} == {
        "seed": 0,
        "unit": "",
        "container": bench.id,
        "pid": 0,
    }


def test_the_namespace_of_the_kubeconfig_and_of_the_option(bench: Bench) -> None:
    assert bench.inject("--selector", "app=web").code == 0
    assert list(bench.live()) == ["w2"]
    bench.world.run("recover", "--all")
    refused(bench.inject("--selector", "app=web", "--namespace", "other"), "no pod runs", "in other")
    assert bench.inject("--pod", "web-0", "--namespace", "prod").code == 0
    refused(bench.inject("--pod", "web-0"), "in which namespace is web-0?")


def test_ambiguity_is_refused_and_asked_for(bench: Bench) -> None:
    bench.run_pod("resize-1.33")
    refused(bench.inject("--selector", "app=web"), "fits 2 pods: prod/web-0, prod/web-resize", "--every-pod")
    assert bench.live() == {}
    done = bench.inject("--selector", "app=web", "--every-pod", "--json").data
    assert sorted(done["nodes"]) == ["w1", "w2"] and len({one["id"] for one in done["injections"]}) == 1
    ids = {node: one["container"] for node, one in bench.live().items()}
    assert ids == {link["node"]: link["container_id"] for link in done["pods"]} and len(set(ids.values())) == 2
    bench.world.run("recover", "--all")
    bench.run_pod("sidecar-1.29")
    refused(bench.inject("--selector", "app=web", "--every-pod"), "are both on w1")
    assert bench.live() == {}


def test_which_container(bench: Bench) -> None:
    pod = bench.run_pod("two-1.24")
    refused(bench.inject("--pod", "prod/web-two"), "has 2 containers: app, side", "--container")
    done = bench.inject("--pod", "prod/web-two", "--container", "side")
    assert done.code == 0 and "runtime class kata" in done.out
    assert bench.live()["w2"]["container"] == pod["status"]["containerStatuses"][0]["containerID"][9:]
    bench.run_pod("sidecar-1.29")
    assert "sidecar" in bench.inject("--pod", "prod/web-sidecar", "--container", "proxy", "--plan").out


@pytest.mark.parametrize(
    ("name", "title", "flags"),
    [
        ("host-network-1.30", "prod/exporter-q", ("--allow-host-network",)),
        ("static-1.32", "kube-system/kube-apiserver-w1", ("--allow-host-network", "--allow-control-plane")),
    ],
)
def test_what_others_depend_on_is_refused_unless_asked_for(
    bench: Bench, name: str, title: str, flags: tuple[str, ...]
) -> None:
    bench.run_pod(name)
    for given in range(len(flags)):
        refused(bench.inject("--pod", title, *flags[:given]), f"pod {title}")
    assert bench.live() == {}
    assert bench.inject("--pod", title, *flags).code == 0
    assert len(bench.live()) == 1


def _moves(bench: Bench) -> None:
    bench.web["spec"]["nodeName"] = "w3"


def _restarts(bench: Bench) -> None:
    bench.status()["containerID"] = NEW


def _crashes(bench: Bench) -> None:
    bench.status()["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    bench.status()["containerID"] = NEW


def _is_made_anew(bench: Bench) -> None:
    bench.web["metadata"]["uid"] = "other"


def _ends(bench: Bench) -> None:
    bench.web["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"


def _goes(bench: Bench) -> None:
    del bench.api.pods["prod", "web-0"]


CHANGES = [
    (_moves, "has moved from w2 to w3"),
    (_restarts, "container app of pod prod/web-0 has restarted (running)"),
    (_crashes, "has restarted (waiting, CrashLoopBackOff)"),
    (_is_made_anew, "is another one of that name by now"),
    (_ends, "is being deleted"),
    (_goes, "pod prod/web-0 is gone"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_pod_that_moved_between_plan_and_apply(bench: Bench, change: Any, message: str) -> None:
    bench.before("Plan", lambda: change(bench))
    refused(bench.inject("--pod", "prod/web-0"), message, "nothing is planted")
    assert bench.live() == {} and all(not one.applied for one in bench.world.injectors.values())


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_pod_that_moved_in_the_last_moment(bench: Bench, change: Any, message: str) -> None:
    """After labctl has looked again: the agent finds no container of that id."""

    def late() -> None:
        bench.world.injector("w2").containers.clear()
        change(bench)

    bench.before("Apply", late)
    refused(bench.inject("--pod", "prod/web-0"), message, "nothing is planted")
    assert bench.live() == {}


@pytest.mark.parametrize("change", [_moves, _is_made_anew, _ends, _goes])
def test_a_pod_that_goes_while_its_container_lives_on(bench: Bench, change: Any) -> None:
    """A pod deleted by force is gone before its container is: what was planted on that is taken back."""
    bench.before("Apply", lambda: change(bench))
    refused(bench.inject("--pod", "prod/web-0"), "nothing is planted", "(taken back on w2)")
    assert bench.live() == {} and bench.world.injector("w2").applied


@pytest.mark.parametrize("change", [_restarts, _crashes])
def test_a_container_may_restart_because_of_what_was_planted(bench: Bench, change: Any) -> None:
    bench.before("Apply", lambda: change(bench))
    assert bench.inject("--pod", "prod/web-0").code == 0
    assert list(bench.live()) == ["w2"]


def test_a_cluster_may_be_silent_because_of_what_was_planted(bench: Bench) -> None:
    bench.before("Apply", lambda: setattr(bench.api, "fails", (503, "{}")))
    done = bench.inject("--pod", "prod/web-0")
    assert done.code == 0 and "warning: whether the pods are still where they were" in done.err
    assert list(bench.live()) == ["w2"]


def test_one_of_several_that_moved_keeps_all_from_being_planted(bench: Bench) -> None:
    bench.run_pod("resize-1.33")
    bench.before("Plan", lambda: _restarts(bench))
    refused(bench.inject("--selector", "app=web", "--every-pod"), "prod/web-0 has restarted")
    assert bench.live() == {}


def test_an_id_given_again_does_not_follow_a_pod(bench: Bench) -> None:
    argv = ("--pod", "prod/web-0", "--id", "again1")
    assert bench.inject(*argv).code == 0
    assert bench.inject(*argv).code == 0
    assert len(bench.world.injector("w2").injections()) == 1
    _moves(bench)
    bench.world.injector("w3").containers[bench.id] = GROUP.format(bench.id)
    refused(bench.inject(*argv), "injection again1 is on w2 already", "recover again1")
    assert list(bench.live()) == ["w2"]
    bench.web["spec"]["nodeName"] = "w2"
    _restarts(bench)
    bench.world.injector("w2").containers[bench.id] = GROUP.format(bench.id)
    refused(bench.inject(*argv), "injection again1 is on w2 already")


# -- kubeconfigs and clusters ------------------------------------------------------------------------------------


def test_a_kubeconfig_of_another_cluster_whose_nodes_are_others(bench: Bench) -> None:
    bench.api.nodes.clear()
    bench.api.add_node("k8s-a", "203.0.113.9")
    bench.web["spec"]["nodeName"] = "k8s-a"
    refused(
        bench.inject("--pod", "prod/web-0"), "node k8s-a of the cluster (203.0.113.9, k8s-a) is no node of this"
    )


def test_a_kubeconfig_of_another_cluster_whose_nodes_have_the_same_names(bench: Bench) -> None:
    bench.api.add_node("w2", "10.77.0.2", boot_id="of another machine")
    refused(bench.inject("--pod", "prod/web-0"), "node w2 of the cluster is not w2", "another cluster")
    assert bench.live() == {}
    bench.api.add_node("w2", "10.77.0.2", boot_id="")  # a cluster that does not tell: the container does
    bench.world.injector("w2").containers.clear()
    refused(bench.inject("--pod", "prod/web-0"), "does not run on w2, where it should", "another cluster")
    assert bench.live() == {}


def test_nodes_by_address_and_by_label(bench: Bench) -> None:
    bench.api.add_node("ip-10-77-0-2", "10.77.0.2", boot_id=BOOT)
    bench.web["spec"]["nodeName"] = "ip-10-77-0-2"
    assert (
        bench.inject("--pod", "prod/web-0", "--plan", "--json").data["pods"][0]["known_by"] == "address 10.77.0.2"
    )
    bench.api.add_node("ip-10-77-0-2", boot_id=BOOT)
    refused(bench.inject("--pod", "prod/web-0"), "is no node of this lab", "kubernetes-node=ip-10-77-0-2")
    bench.world.run("node", "label", "w2", "kubernetes-node=ip-10-77-0-2")
    assert bench.inject("--pod", "prod/web-0").code == 0


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--pod", "prod/nobody"), 64, ("has no pod prod/nobody",)),
        (("--pod", "prod/web-0", "--context", "nowhere"), 64, ("there is no 'nowhere'", "contexts: here, there")),
        (
            ("--pod", "prod/web-0", "--context", "there"),
            70,
            ("the cluster at http://127.0.0.1:1 does not answer",),
        ),
        (("--pod", "prod/web-0", "--selector", "a=b"), 64, ("--pod and --selector exclude each other",)),
        (("--pod", "prod/web-0", "--node", "w1"), 64, ("--pod and --node exclude each other",)),
        (("--selector", "a=b", "--unit", "cron"), 64, ("--selector and --unit exclude each other",)),
        (("--pod", "prod/web-0", "--pid", "7"), 64, ("--pod and --pid exclude each other",)),
        (("--pod", "prod/web-0", "--every-pod"), 64, ("--every-pod: is for --selector",)),
        (("--node", "w1", "--unit", "cron"), 64, ("--kubeconfig: is for pods",)),
    ],
)
def test_bad_words(bench: Bench, argv: tuple[str, ...], code: int, words: tuple[str, ...]) -> None:
    done = bench.inject(*argv)
    assert done.code == code, done.err
    for word in words:
        assert word in done.err
    assert bench.live() == {} and "Traceback" not in done.err


@pytest.mark.parametrize("text", [None, "", "{}", "a: [", "[]", "kind: Config\n", '{"contexts": [{"name": "x"}]}'])
def test_a_kubeconfig_that_is_none(bench: Bench, text: str | None) -> None:
    if text is None:
        bench.config.unlink()
    else:
        bench.config.write_text(text)
    refused(bench.inject("--pod", "prod/web-0"), "--kubeconfig", str(bench.config))


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (403, '{"message": "pods is forbidden: no, bob"}', 64, ("does not let", "forbidden: no, bob")),
        (401, "Unauthorized", 64, ("does not let",)),
        (500, '{"message": "etcd\\nis away"}', 70, ("failed at pod prod/web-0: 500 etcd is away",)),
        (400, '{"message": "unable to parse"}', 64, ("refuses pod prod/web-0: unable to parse",)),
        (200, "<html>a router</html>", 70, ("is no cluster",)),
        (200, "[]", 70, ("is not understood",)),
        (200, '{"metadata": {"name": "x", "uid": "y"}, "spec": {"containers": [7]}}', 70, ("is not understood",)),
    ],
)  # fmt: skip
def test_clusters_that_answer_otherwise(
    bench: Bench, status: int, body: str, code: int, words: tuple[str, ...]
) -> None:
    bench.api.fails = (status, body)
    done = bench.inject("--pod", "prod/web-0")
    assert done.code == code, done.err
    for word in words:
        assert word in done.err
    assert len(bench.api.asked) == 1 and len(done.err.strip().splitlines()) <= 2


def test_a_fault_that_hits_no_container_knows_nothing_of_pods(world: World) -> None:
    done = world.run("inject", "toy_delay", "--pod", "prod/web-0")
    assert done.code == 64 and "--pod" in done.err
    assert "--pod" in world.run("inject", "toy_stall", "--help").out
