"""Which pods and which of their containers are meant, and whether they may be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labctl.errors import UsageError
from labctl.nearest import nearest
from labctl.pods.shapes import Container, Pod

_NAMED = 8


@dataclass(frozen=True)
class Wanted:
    """What the user said. Either `name` or `selector`; `container` "" where there is only one."""

    namespace: str
    name: str = ""
    selector: str = ""
    container: str = ""
    every_pod: bool = False
    host_network: bool = False
    control_plane: bool = False

    @property
    def title(self) -> str:
        """What was said, in words."""
        return f"pod {self.namespace}/{self.name}" if self.name else f"pods {self.selector} in {self.namespace}"


def wanted_pod(text: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of `--pod`. Raises :class:`UsageError`."""
    space, slash, name = text.rpartition("/")
    allowed = "allowed: NAMESPACE/NAME, or NAME with --namespace"
    if not name or "/" in space or (slash and not space):
        raise UsageError(f"--pod: {text!r} is no pod", allowed)
    if space and namespace and space != namespace:
        raise UsageError(f"--pod: {text} is not in namespace {namespace}", "leave out --namespace")
    if not space and not namespace:
        raise UsageError(f"--pod: in which namespace is {text}?", allowed)
    return space or namespace, name


def choose_pods(pods: Sequence[Pod], wanted: Wanted) -> tuple[tuple[Pod, Container], ...]:
    """The pods that are meant, each with the container that is. Raises :class:`UsageError` where that is not sure.

    Of several that a selector fits those that are over or on their way out are none to choose from.
    """
    if wanted.selector:
        pods = [pod for pod in pods if not pod.deleting and pod.phase not in ("Succeeded", "Failed")]
    if not pods:
        raise UsageError(f"--selector: no pod runs that is one of the {wanted.title}", "kubectl get pods -l …")
    if len(pods) > 1 and not wanted.every_pod:
        names = _some([pod.title for pod in pods])
        raise UsageError(
            f"--selector: {wanted.selector} fits {len(pods)} pods: {names}",
            "--pod for one of them, or --every-pod for all",
        )
    for pod in pods:
        _refuse_unfit(pod, wanted)
    return tuple((pod, _container(pod, wanted.container)) for pod in pods)


def _refuse_unfit(pod: Pod, wanted: Wanted) -> None:
    """Raises :class:`UsageError` for a pod that is not there, or that others depend on."""
    title = f"pod {pod.title}"
    if pod.deleting:
        raise UsageError(f"{title} is being deleted", "another pod")
    if pod.phase in ("Succeeded", "Failed"):
        raise UsageError(f"{title} is over: {pod.phase}", "a pod that runs")
    if not pod.node:
        raise UsageError(f"{title} is on no node yet: {pod.phase}", f"kubectl -n {pod.namespace} describe {title}")
    if pod.control_plane and not wanted.control_plane:
        raise UsageError(
            f"{title} belongs to the cluster itself: {pod.control_plane}",
            "another pod; --allow-control-plane if it is what you mean",
        )
    if pod.host_network and not wanted.host_network:
        raise UsageError(
            f"{title} uses its node's network (hostNetwork): what hits it may hit the node",
            "another pod; --allow-host-network if it is what you mean",
        )


def _container(pod: Pod, name: str) -> Container:
    ordinary = [one for one in pod.containers if one.kind == "container"]
    if name:
        found = pod.container(name)
        if found is None:
            known = [one.name for one in pod.containers]
            raise UsageError(
                f"--container: pod {pod.title} has no container {name!r}", nearest(name, known, "those")
            )
    elif len(ordinary) == 1:
        found = ordinary[0]
    else:
        names = _some([one.name for one in ordinary])
        raise UsageError(f"pod {pod.title} has {len(ordinary)} containers: {names}", "--container NAME says which")
    if found.state != "running":
        why = f" ({found.why})" if found.why else ""
        raise UsageError(
            f"container {found.name} of pod {pod.title} does not run: {found.state}{why}", "a container that runs"
        )
    if not found.id:
        raise UsageError(
            f"container {found.name} of pod {pod.title} has no id that is known here", "a runtime of the CRI"
        )
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
