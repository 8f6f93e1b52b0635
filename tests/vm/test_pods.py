"""A real fault on the container of a pod: containerd on a node, the API of a cluster beside the test.

The API is made up, with the ids of real containers; tests/kubernetes has a real cluster, without BPF.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import LabUnderTest, ssh
from tests.unit.cluster_api import ClusterApi, kubeconfig, served, shape
from tests.user import labctl, labctl_json, until
from tests.vm.runtime import Runtime

pytestmark = [pytest.mark.vm, pytest.mark.thorough]

POD = "f1d4a2b0-7c1e-4d53-9f0a-0c8a1b2c3d4e"
VICTIM, BESIDE, AFTER = "a1" * 32, "b2" * 32, "c3" * 32
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
GROUPS = {
    VICTIM: f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{VICTIM}.scope",
    BESIDE: f"/kubepods/burstable/pod{POD}/{BESIDE}",
}
TRIES = "while :; do : >/tmp/x; (rm -f /tmp/x 2>/dev/null && echo ok || echo no) >>/tmp/log; sleep 0.1; done"


class Pods:
    """Two containers of a pod on w3: one in a control group as systemd makes it, one as cgroupfs does."""

    def __init__(self, lab: LabUnderTest, api: ClusterApi, config: Path) -> None:
        self.node, self.config = lab.node("w3"), config
        self.runtime = Runtime(self.node)
        self.pids = {
            VICTIM: self.runtime.start(VICTIM, f"{SLICE}:cri-containerd:{VICTIM}", TRIES, systemd=True),
            BESIDE: self.runtime.start(BESIDE, GROUPS[BESIDE], TRIES, systemd=False),
        }
        boot = ssh(self.node, "cat /proc/sys/kernel/random/boot_id").stdout.strip()
        api.add_node("worker-3.example", self.node.lab_addresses[0], boot_id=boot)
        self.pod = api.add(shape("two-1.24"), uid=POD, name="shop-0")
        self.pod["spec"] |= {"nodeName": "worker-3.example", "runtimeClassName": None}
        self.becomes("app", VICTIM)
        self.becomes("side", BESIDE)

    def becomes(self, name: str, identity: str) -> None:
        """The cluster's word for the id of a container."""
        told = next(one for one in self.pod["status"]["containerStatuses"] if one["name"] == name)
        told["containerID"] = f"containerd://{identity}"

    def argv(self, fault: str, container: str, *more: str) -> tuple[str, ...]:
        return ("inject", fault, "--kubeconfig", str(self.config), "--pod", "prod/shop-0",
                "--container", container, *more)  # fmt: skip

    def said(self, identity: str) -> dict[str, int]:
        """What a container wrote since the last look: how often it could, and how often not."""
        log = f"/proc/{self.pids[identity]}/root/tmp/log"
        words = ssh(self.node, f"[ -e {log} ] && cat {log}; : > {log}").stdout.split()
        return {word: words.count(word) for word in ("ok", "no")}

    def only(self, identity: str, word: str) -> bool:
        """Whether it says nothing but that."""
        found = self.said(identity)
        return found[word] > 0 and sum(found.values()) == found[word]


@pytest.fixture(scope="module")
def pods(lab: LabUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    lab.reset()
    with served(ClusterApi()) as api:
        yield Pods(lab, api, kubeconfig(tmp_path_factory.mktemp("pods") / "kubeconfig", api.url))
    lab.reset()


FAIL = ("--operation", "unlink", "--errno", "EPERM")


def test_calls_of_one_container_fail_and_are_healed(pods: Pods) -> None:
    until("both work", lambda: pods.only(VICTIM, "ok") and pods.only(BESIDE, "ok"))
    planned = labctl_json(*pods.argv("syscall_error", "app", *FAIL, "--plan"))
    (link,) = planned["pods"]
    assert (link["node"], link["known_by"]) == ("w3", f"address {pods.node.lab_addresses[0]}")
    assert (link["container_id"], link["cgroup"]) == (VICTIM, GROUPS[VICTIM])
    done = labctl_json(*pods.argv("syscall_error", "app", *FAIL))
    assert done["pods"] == [link]
    until("it fails", lambda: pods.only(VICTIM, "no"))
    assert pods.said(BESIDE)["no"] == 0
    (seen,) = labctl_json("evidence", done["id"])["injections"]
    assert seen["evidence"]["armed"] and seen["evidence"]["hits"] > 0
    labctl("recover", done["id"])
    until("it works again", lambda: pods.only(VICTIM, "ok"))
    assert all(one["foreign"] for one in labctl_json("node", "residue", "w3")["entries"])


def test_a_control_group_made_by_the_kubelet_itself(pods: Pods) -> None:
    done = labctl_json(*pods.argv("process_pause", "side"))
    (link,) = done["pods"]
    assert link["cgroup"] == GROUPS[BESIDE]
    pods.said(BESIDE)
    pods.said(VICTIM)
    until("the other goes on", lambda: pods.said(VICTIM)["ok"] > 3)
    assert sum(pods.said(BESIDE).values()) == 0
    labctl("recover", done["id"])
    until("it goes on", lambda: pods.only(BESIDE, "ok"))


def test_a_container_that_is_another_by_now(pods: Pods) -> None:
    """The cluster tells of the one of before: it is on no node any more, and nothing is hit in its place."""
    pods.runtime.kill(VICTIM)
    pods.pids[AFTER] = pods.runtime.start(AFTER, f"{SLICE}:cri-containerd:{AFTER}", TRIES, systemd=True)
    refused = labctl(*pods.argv("syscall_error", "app", *FAIL), status=64).stderr
    assert "container app of pod prod/shop-0 does not run on w3" in refused and "nothing is planted" in refused
    assert labctl_json("injections")["injections"] == []
    pods.becomes("app", AFTER)
    done: Any = labctl_json(*pods.argv("syscall_error", "app", *FAIL))
    until("the new one fails", lambda: pods.only(AFTER, "no"))
    labctl("recover", done["id"])
    until("it works again", lambda: pods.only(AFTER, "ok"))
