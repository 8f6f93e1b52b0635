"""Pods for the tests: a shell that eats memory when it is told to, with a child that sleeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubernetes.client import ApiException
from kubernetes.stream import stream

from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.images import APP, FOREVER
from tests.kubernetes.bed.world import wait_for

SPACE = "shop"
EAT = "/tmp/eat"
_SCRIPT = f"sleep {FOREVER} & while ! [ -e {EAT} ]; do sleep 0.1; done; exec tail /dev/zero"
READY_S = 90.0


def container(name: str, mark: str, memory: str = "") -> dict[str, Any]:
    """A container whose processes have `mark` in their environment. With a limit of memory it is Burstable."""
    limits = {"resources": {"limits": {"memory": memory}}} if memory else {}
    return {
        "name": name, "image": APP, "imagePullPolicy": "Never", "command": ["sh", "-c", _SCRIPT],
        "env": [{"name": "GF_MARK", "value": mark}], **limits,
    }  # fmt: skip


def pod(name: str, node: str, *containers: Mapping[str, Any], labels: Mapping[str, str] | None = None,
        **spec: Any) -> dict[str, Any]:  # fmt: skip
    """A pod that is on that node, or wherever the scheduler puts it."""
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "containers": [*(containers or (container("app", name),))], "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False, **where, **spec,
        },
    }  # fmt: skip


def make(bed: Bed, *pods: Mapping[str, Any]) -> None:
    """Make them, and wait until they run."""
    for one in pods:
        bed.core.create_namespaced_pod(SPACE, one)
    for one in pods:
        runs(bed, one["metadata"]["name"])


def runs(bed: Bed, name: str, space: str = SPACE, other_than: str = "") -> Mapping[str, Any]:
    """The pod, once all its containers run; `other_than`: the id of a container that must be gone."""

    def look() -> Mapping[str, Any] | None:
        try:
            found = bed.read(space, name)
        except ApiException as error:
            if error.status != 404:
                raise
            return None
        told = found.get("status", {}).get("containerStatuses", [])
        good = len(told) == len(found["spec"]["containers"]) and all("running" in one["state"] for one in told)
        same = any(one.get("containerID") == other_than for one in told)
        return found if good and not same and "deletionTimestamp" not in found["metadata"] else None

    return wait_for(f"pod {name} runs", look, READY_S) or {}


def container_id(found: Mapping[str, Any], number: int = 0) -> str:
    """The id of a container of a pod, with its runtime."""
    return str(found["status"]["containerStatuses"][number]["containerID"])


def status(bed: Bed, name: str) -> Mapping[str, Any]:
    """The status of a pod's first container."""
    told: Mapping[str, Any] = bed.read(SPACE, name)["status"]["containerStatuses"][0]
    return told


def eat(bed: Bed, name: str) -> None:
    """Have the first container of a pod eat all memory it can get."""
    words = ["touch", EAT]
    stream(bed.core.connect_get_namespaced_pod_exec, name, SPACE, command=words, stderr=True, stdin=False,
           stdout=True, tty=False, _request_timeout=30)  # fmt: skip


def delete(bed: Bed, name: str) -> None:
    """Delete a pod at once, and wait until it is gone."""
    uid = bed.read(SPACE, name)["metadata"]["uid"]
    bed.core.delete_namespaced_pod(name, SPACE, grace_period_seconds=0)
    wait_for(f"pod {name} is gone", lambda: _uid(bed, name) != uid, READY_S)


def _uid(bed: Bed, name: str) -> str:
    try:
        return str(bed.read(SPACE, name)["metadata"]["uid"])
    except ApiException as error:
        if error.status != 404:
            raise
        return ""


def marked(mark: str) -> dict[int, str]:
    """Processes of this machine that have the mark, and the control group each is in, by version 2's line."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                groups = (path / "cgroup").read_text().splitlines()
            except OSError:
                continue
            if f"GF_MARK={mark}".encode() in words:
                found[int(path.name)] = next(line[3:] for line in groups if line.startswith("0::"))
    return found


def moves(bed: Bed, name: str) -> Callable[[], None]:
    """A pod of a StatefulSet comes back on another node, under the same name."""

    def move() -> None:
        node = bed.read(SPACE, name)["spec"]["nodeName"]
        _schedulable(bed, node, False)
        delete(bed, name)
        runs(bed, name)
        _schedulable(bed, node, True)

    return move


def _schedulable(bed: Bed, node: str, so: bool) -> None:
    bed.core.patch_node(node, {"spec": {"unschedulable": not so}})


def frozen(group: str) -> bool:
    """Whether the kernel says that a control group of version 2 stands still."""
    root = next(
        path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(path, "cgroup.procs").exists()
    )
    return "frozen 1" in Path(f"{root}{group}/cgroup.events").read_text().splitlines()


def stateful_set(name: str) -> dict[str, Any]:
    """A set of one pod, NAME-0."""
    template = pod(name, "", container("app", f"{name}-0"), labels={"set": name})
    return {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "serviceName": name, "replicas": 1, "selector": {"matchLabels": {"set": name}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }  # fmt: skip


def static(bed: Bed, node: str, name: str) -> str:
    """A static pod on a node; its name in the cluster."""
    manifest = pod(name, "", container("app", name), labels={"component": name})
    manifest["metadata"]["namespace"] = "kube-system"
    del manifest["spec"]["automountServiceAccountToken"]
    (bed.nodes[node].here / "static" / f"{name}.json").write_text(json.dumps(manifest))
    return f"{name}-{node}"
