"""`--pod` and `--selector`: from pods of a Kubernetes cluster to nodes of the lab, and the containers on them.

A container is known to the agent by its id, which is never used twice. So what is planted is planted on that
container or on none, even where the pod moves in the last moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel, ConfigDict

from labctl.cli.aiming import Targets
from labctl.cli.fleet import ask_all, failure, names_of
from labctl.cli.names import AnyFault
from labctl.cli.planting import Request
from labctl.cli.recovering import find_injections
from labctl.cli.targets import Chosen
from labctl.errors import NotThereError, UsageError
from labctl.lab.addresses import known_addresses
from labctl.lab.model import Node
from labctl.pods.choosing import Wanted, choose_pods, wanted_pod
from labctl.pods.placing import find_node, refuse_other_boot
from labctl.pods.shapes import ClusterNode, Container, Pod
from labctl.report.text import labelled
from node_agent.api.views import PlanView
from node_agent.scopes import ScopeFields

if TYPE_CHECKING:
    from labctl.cli.session import Session
    from labctl.pods.cluster import Cluster

FIELD = "container"
"""The parameter that a pod sets: a fault without it has nothing to do with pods."""

OPTIONS = ("pod", "selector", "namespace", "kubeconfig", "context", "every_pod", "allow_host_network",
           "allow_control_plane")  # fmt: skip


_NOTHING = "nothing is planted"


class Link(BaseModel):
    """The way from a pod to a container on a node of the lab."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pod: str
    uid: str
    cluster: str
    cluster_node: str
    node: str
    known_by: str
    container: str
    kind: str
    runtime: str
    container_id: str
    restarts: int
    runtime_class: str = ""


class Aim:
    """The pods that are meant, and the ways to them."""

    def __init__(self, cluster: Cluster, wanted: Wanted, links: Sequence[Link], nodes: Sequence[Node]) -> None:
        self._cluster, self._wanted, self.links = cluster, wanted, tuple(links)
        by_name = {node.name: node for node in nodes}
        chosen = tuple(by_name[link.node] for link in self.links)
        own = tuple(({FIELD: link.container_id}, (by_name[link.node],)) for link in self.links)
        self.targets = Targets(Chosen(chosen, self._wanted.title), own=own)

    def look_again(self, planted: bool = False) -> None:
        """Just before it is planted. Raises :class:`UsageError` where a pod has moved or a container restarted.

        Once it is planted, only what no fault does counts: that the pod is another one, or elsewhere. A container
        that restarts then may well do so because of it.
        """
        for link in self.links:
            namespace, _, name = link.pod.partition("/")
            try:
                now = self._cluster.pod(namespace, name)
            except NotThereError:
                raise UsageError(f"pod {link.pod} is gone; {_NOTHING}", "another pod") from None
            found = now.container(link.container)
            same = planted or (found is not None and found.id == link.container_id)
            if not same or (now.uid, now.node) != (link.uid, link.cluster_node) or now.deleting:
                raise UsageError(f"{_what_became_of(link, now, found)}; {_NOTHING}", "plan it again")

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Where an agent does not know a container, say whose it was to be."""
        try:
            yield
        except UsageError as error:
            lost = next(
                (link for link in self.links if f"{link.container_id} does not run" in error.message), None
            )
            if lost is None:
                raise
            self.look_again()
            raise UsageError(
                f"container {lost.container} of pod {lost.pod} does not run on {lost.node}, where it should; "
                f"{_NOTHING}",
                f"is {lost.cluster} another cluster than that of {lost.node}? Or does the container end just now?",
            ) from None

    def lines(self, plans: Mapping[str, PlanView]) -> list[str]:
        """The way to each container, for people."""
        lines: list[str] = []
        for link in self.links:
            rows = [
                ("uid", link.uid),
                ("node", f"{link.node}, which {link.cluster} calls {link.cluster_node} (by {link.known_by})"),
                (link.kind, f"{link.container} {link.runtime}://{link.container_id}"),
                ("control group", _group(link, plans)),
                (
                    "runs in",
                    link.runtime_class and f"runtime class {link.runtime_class}: not sure to be processes",
                ),
            ]
            lines += [f"pod {link.pod}", *labelled([row for row in rows if row[1]])]
        return lines

    def data(self, plans: Mapping[str, PlanView]) -> dict[str, Any]:
        """The same for --json."""
        return {"pods": [{**link.model_dump(), "cgroup": _group(link, plans)} for link in self.links]}


def _what_became_of(link: Link, now: Pod, found: Container | None) -> str:
    title = f"pod {link.pod}"
    if now.deleting:
        return f"{title} is being deleted"
    if now.node != link.cluster_node:
        return f"{title} has moved from {link.cluster_node} to {now.node or 'no node'}"
    if now.uid != link.uid:
        return f"{title} is another one of that name by now"
    state = f" ({found.state}{f', {found.why}' if found.why else ''})" if found else " (gone)"
    return f"container {link.container} of {title} has restarted{state}"


def _group(link: Link, plans: Mapping[str, PlanView]) -> str:
    """The control group of the container as the agent has found it; "" where its plan does not say."""
    plan = plans.get(link.node)
    return group_in(plan.model_dump_json(), link.container_id) if plan else ""


def group_in(text: str, container_id: str) -> str:
    """The path of a control group up to the container of that id, in whatever an agent says of its target."""
    found = re.findall(rf"/[^\s\"\\,()]*{re.escape(container_id)}[^\s\"\\,()/]*", text)
    return (
        str(min(found, key=len)).removeprefix("/sys/fs/cgroup/unified").removeprefix("/sys/fs/cgroup")
        if found
        else ""
    )


def pod_options(fault: AnyFault) -> list[click.Parameter]:
    """The options that name pods, for a fault that can hit a container."""
    if FIELD not in fault.model_fields:
        return []
    return [
        click.Option(["--pod"], metavar="NAMESPACE/NAME", help="On this pod's container, where it runs."),
        click.Option(["--selector"], metavar="LABELS", help="On the pod with these labels: app=web,tier=db."),
        click.Option(["--namespace"], metavar="NAME", help="Of --selector or --pod.  [default: the kubeconfig's]"),
        click.Option(["--every-pod"], is_flag=True, help="On all that --selector fits, one on each node."),
        click.Option(["--kubeconfig"], type=click.Path(path_type=Path), metavar="FILE",
                     help="Of the pods' cluster.  [default: KUBECONFIG, or ~/.kube/config]"),
        click.Option(["--context"], metavar="NAME", help="Of the kubeconfig.  [default: its current one]"),
        click.Option(["--allow-host-network"], is_flag=True, help="Also a pod on its node's network."),
        click.Option(["--allow-control-plane"], is_flag=True, help="Also a pod of the cluster itself."),
    ]  # fmt: skip


def find_pods(session: Session, options: Mapping[str, Any], nodes: Sequence[Node]) -> Aim | None:
    """The pods that the options name; None where they name none. Raises :class:`UsageError`."""
    if not options.get("pod") and not options.get("selector"):
        beside = next((name for name in OPTIONS if options.get(name)), "")
        if beside:
            raise UsageError(
                f"--{beside.replace('_', '-')}: is for pods", "add --pod NAMESPACE/NAME, or --selector"
            )
        return None
    _refuse_others(options)
    cluster = session.tools.cluster(options.get("kubeconfig"), options.get("context") or "")
    wanted = _wanted(options, cluster)
    with session.patience(f"asking {cluster.server} about {wanted.title}"):
        pods = (
            cluster.pods(wanted.namespace, wanted.selector)
            if wanted.selector
            else (cluster.pod(wanted.namespace, wanted.name),)
        )
        chosen = choose_pods(pods, wanted)
        there = {pod.node: cluster.node(pod.node) for pod, _ in chosen}
    links = [_link(cluster.server, there[pod.node], nodes, pod, found) for pod, found in chosen]
    _refuse_two_on_a_node(links)
    aim = Aim(cluster, wanted, links, nodes)
    _check_boots(session, aim, there)
    return aim


def _refuse_others(options: Mapping[str, Any]) -> None:
    if options.get("pod") and options.get("selector"):
        raise UsageError("--pod and --selector exclude each other", "one of them")
    if options.get("pod") and options.get("every_pod"):
        raise UsageError("--every-pod: is for --selector", "leave it out")
    given = "--pod" if options.get("pod") else "--selector"
    named = {"nodes": "--node", "labels": "--nodes-labelled", "groups": "--groups"}
    scopes = {name: f"--{name}" for name in ScopeFields.model_fields if name != FIELD}
    for name, option in {**named, **scopes}.items():
        if options.get(name):
            raise UsageError(f"{given} and {option} exclude each other", f"the pod says where: leave out {option}")


def _wanted(options: Mapping[str, Any], cluster: Cluster) -> Wanted:
    namespace, name = options.get("namespace") or "", ""
    if options.get("pod"):
        namespace, name = wanted_pod(options["pod"], namespace)
    return Wanted(
        namespace=namespace or cluster.namespace, name=name, selector=options.get("selector") or "",
        container=options.get(FIELD) or "", every_pod=bool(options.get("every_pod")),
        host_network=bool(options.get("allow_host_network")),
        control_plane=bool(options.get("allow_control_plane")),
    )  # fmt: skip


def _link(server: str, there: ClusterNode, nodes: Sequence[Node], pod: Pod, found: Container) -> Link:
    node, known_by = find_node(there, nodes, known_addresses)
    return Link(
        pod=pod.title, uid=pod.uid, cluster=server, cluster_node=pod.node, node=node.name,
        known_by=known_by, container=found.name, kind=found.kind, runtime=found.runtime, container_id=found.id,
        restarts=found.restarts, runtime_class=pod.runtime_class,
    )  # fmt: skip


def _refuse_two_on_a_node(links: Sequence[Link]) -> None:
    for number, link in enumerate(links):
        other = next((one for one in links[:number] if one.node == link.node), None)
        if other is not None:
            raise UsageError(
                f"--every-pod: {other.pod} and {link.pod} are both on {link.node}; an injection is one on a node",
                "--pod for each of them",
            )


def _check_boots(session: Session, aim: Aim, there: Mapping[str, ClusterNode]) -> None:
    """Whether the agents run where the kubelets do."""
    chosen = aim.targets.chosen.nodes
    with session.patience(f"asking {names_of(chosen)}"):
        answers = ask_all(chosen, lambda node: session.agent(node).facts())
    if answers.bad:
        raise failure(answers, "nothing was changed")
    for link, node in zip(aim.links, chosen, strict=True):
        refuse_other_boot(there[link.cluster_node], node, answers.good[node.name].boot_id)


def refuse_known_elsewhere(session: Session, request: Request, nodes: Sequence[Node]) -> None:
    """Raises :class:`UsageError` where the same id was planted on another container: the pod has moved since.

    Given again, an id is the same injection, and that one stays where it was.
    """
    answers = find_injections(session, nodes, [request.id], ended=True)
    for node in nodes:
        for one in answers.good.get(node.name, ()):
            if (
                one.parameters.get(FIELD) != request.parameters_for(node).get(FIELD)
                or node.name not in request.own
            ):
                raise UsageError(
                    f"injection {request.id} is on {node.name} already, on container {one.parameters.get(FIELD)}: "
                    "the pod has moved or restarted since",
                    f"{session.command(f'recover {request.id}')}, then a new id",
                )
