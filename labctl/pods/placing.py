"""Which node of the lab a node of the cluster is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labctl.errors import UsageError
from labctl.lab.model import Node
from labctl.pods.shapes import ClusterNode

LABEL = "kubernetes-node"
"""A label of a node of the lab that says how the cluster calls it, where nothing else does."""

Resolve = Callable[[Node], Sequence[str]]
"""The addresses of a node of the lab: as they are written down, and looked up where those are names."""


def find_node(there: ClusterNode, nodes: Sequence[Node], resolve: Resolve) -> tuple[Node, str]:
    """The node of the lab that this is, and by what it was known: its label, its name or an address.

    A label decides alone. Name and address must not lead to different nodes. Raises :class:`UsageError`.
    """
    labelled = [node for node in nodes if node.labels.get(LABEL) == there.name]
    if labelled:
        return _only(there, labelled, "label"), f"label {LABEL}"
    free = [node for node in nodes if LABEL not in node.labels]  # the others are somebody else there
    named = [node for node in free if node.name == there.name]
    named = named or [node for node in free if node.name == there.name.partition(".")[0]]
    theirs = {address.lower() for address in there.addresses}
    at = {node.name: [one for one in resolve(node) if one.lower() in theirs] for node in free}
    found = [node for node in free if at[node.name]]
    if named and found and named[0] not in found:
        raise UsageError(
            f"node {there.name} of the cluster has the name of {named[0].name} and an address of {found[0].name}",
            _remedy(there),
        )
    if named:
        return named[0], "name"
    if found:
        node = _only(there, found, "address")
        return node, f"address {at[node.name][0]}"
    known = ", ".join(f"{node.name} ({node.address})" for node in nodes[:8]) or "none"
    addresses = ", ".join(there.addresses) or "no address"
    raise UsageError(
        f"node {there.name} of the cluster ({addresses}) is no node of this lab, which has {known}",
        f"the kubeconfig of their cluster, or: {_remedy(there)}",
    )


def _only(there: ClusterNode, found: Sequence[Node], what: str) -> Node:
    if len(found) > 1:
        names = " and ".join(node.name for node in found)
        raise UsageError(f"node {there.name} of the cluster is {names} by {what}", _remedy(there))
    return found[0]


def _remedy(there: ClusterNode) -> str:
    return f"labctl node label NODE {LABEL}={there.name}, or labels of the inventory"


def refuse_other_boot(there: ClusterNode, node: Node, boot_id: str) -> None:
    """Raises :class:`UsageError` where the agent runs on another machine, or another boot, than the kubelet did.

    Two clusters may well have a node of the same name, and private addresses are everywhere the same.
    """
    if there.boot_id and boot_id and there.boot_id != boot_id:
        raise UsageError(
            f"node {there.name} of the cluster is not {node.name}: it has booted as {there.boot_id}, "
            f"{node.name} as {boot_id}",
            "is this the kubeconfig of another cluster? After a reboot the kubelet has to start first",
        )
