"""What labctl reads of pods and nodes of a cluster: from the API's JSON to values. Pure.

The JSON is read as it comes, not through a client's classes: these know the fields of one version of the API, and
refuse what another leaves out. What is not needed here is passed over, so a newer cluster is no worse.
Source: the core/v1 API, from Kubernetes 1.20 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["container", "init container", "sidecar", "ephemeral container"]
"""A sidecar is an init container that goes on beside the others: restartPolicy Always, since Kubernetes 1.28."""

State = Literal["running", "waiting", "terminated", "unknown"]

MIRROR, SOURCE = "kubernetes.io/config.mirror", "kubernetes.io/config.source"
"""Annotations of a pod that its node's kubelet made from a file."""

_SYSTEM_NAMESPACES = ("kube-system", "kube-node-lease")
_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
_ID = re.compile(r"^(?P<runtime>[a-z][a-z0-9-]*)://(?P<id>[0-9a-f]{12,64})$")
_LISTS: tuple[tuple[str, str, Kind], ...] = (
    ("containers", "containerStatuses", "container"),
    ("initContainers", "initContainerStatuses", "init container"),
    ("ephemeralContainers", "ephemeralContainerStatuses", "ephemeral container"),
)


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Container(_Value):
    """One container of a pod as the cluster knows it. `id` and `runtime` are empty while it has never run."""

    name: str
    kind: Kind
    state: State
    why: str = ""
    """Why it waits or has ended, in the API's words: CrashLoopBackOff, OOMKilled."""
    runtime: str = ""
    id: str = ""
    restarts: int = 0


class Pod(_Value):
    """A pod as the cluster knows it. `node` is empty until it is scheduled."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    deleting: bool
    host_network: bool
    control_plane: str
    """Why it counts as part of the control plane, in words; empty where it does not."""
    runtime_class: str
    containers: tuple[Container, ...]

    @property
    def title(self) -> str:
        """As a user types it."""
        return f"{self.namespace}/{self.name}"

    def container(self, name: str) -> Container | None:
        """The container of that name, of whatever kind."""
        return next((one for one in self.containers if one.name == name), None)


class ClusterNode(_Value):
    """A node as the cluster knows it: its names and addresses, and which boot of which machine."""

    name: str
    addresses: tuple[str, ...]
    boot_id: str


def pod_of(data: Mapping[str, Any]) -> Pod:
    """A pod from the API's JSON. Raises ValueError where that is no pod."""
    meta, spec, status = (_part(data, key) for key in ("metadata", "spec", "status"))
    if not meta.get("name") or not meta.get("uid"):
        raise ValueError("no name or uid")
    return Pod(
        namespace=str(meta.get("namespace") or "default"),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Unknown"),
        deleting=bool(meta.get("deletionTimestamp")),
        host_network=bool(spec.get("hostNetwork")),
        control_plane=_control_plane(meta, spec),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        containers=tuple(_containers(spec, status)),
    )


def cluster_node_of(data: Mapping[str, Any]) -> ClusterNode:
    """A node from the API's JSON. Raises ValueError where that is no node."""
    meta, status = _part(data, "metadata"), _part(data, "status")
    if not meta.get("name"):
        raise ValueError("no name")
    addresses = (str(one.get("address") or "") for one in status.get("addresses") or ())
    return ClusterNode(
        name=str(meta["name"]),
        addresses=tuple(dict.fromkeys(one for one in addresses if one)),
        boot_id=str(_part(status, "nodeInfo").get("bootID") or ""),
    )


def _part(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}


def _control_plane(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    labels, annotations = _part(meta, "labels"), _part(meta, "annotations")
    if labels.get("tier") == "control-plane":
        return "its label is tier=control-plane"
    if meta.get("namespace") in _SYSTEM_NAMESPACES:
        return f"it is in namespace {meta['namespace']}"
    if spec.get("priorityClassName") in _SYSTEM_CLASSES:
        return f"its priority class is {spec['priorityClassName']}"
    if MIRROR in annotations or annotations.get(SOURCE) in ("file", "http"):
        return "it is a static pod: its node's kubelet made it, not the cluster"
    return ""


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Container]:
    for specs, statuses, kind in _LISTS:
        told = {one.get("name"): one for one in status.get(statuses) or ()}
        for one in spec.get(specs) or ():
            side = kind == "init container" and one.get("restartPolicy") == "Always"
            yield _container(str(one.get("name")), "sidecar" if side else kind, told.get(one.get("name")) or {})


def _container(name: str, kind: Kind, told: Mapping[str, Any]) -> Container:
    """A container that has not run yet has no status, or one that waits; after an end its last id stays."""
    states = _part(told, "state")
    state = next((key for key in ("running", "terminated", "waiting") if states.get(key) is not None), "unknown")
    found = _ID.match(str(told.get("containerID") or ""))
    return Container.model_validate(
        {
            "name": name, "kind": kind, "state": state, "why": str(_part(states, state).get("reason") or ""),
            "runtime": found["runtime"] if found else "", "id": found["id"] if found else "",
            "restarts": int(told.get("restartCount") or 0),
        }
    )  # fmt: skip
