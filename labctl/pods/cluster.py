"""The API of a cluster, by the official client: pods and nodes, only read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from labctl.errors import LabError, NotThereError, UsageError
from labctl.pods.shapes import ClusterNode, Pod, cluster_node_of, pod_of

CONNECT_S, ANSWER_S = 5.0, 20.0
PAGE = 500
"""So many pods are asked for at a time, and are the most that a selector may fit."""

T = TypeVar("T")


class Cluster(Protocol):
    """A cluster as labctl sees it. `server` is the URL of its API, `namespace` that of its kubeconfig."""

    server: str
    namespace: str

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod. Raises :class:`NotThereError` where there is none."""

    def pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        """Those that a label selector fits, in the words of `kubectl get --selector`."""

    def node(self, name: str) -> ClusterNode:
        """One node. Raises :class:`NotThereError` where there is none."""


class KubernetesCluster:
    """:class:`Cluster` for real. Each request is bounded and sent once."""

    def __init__(self, kubeconfig: Path | None = None, context: str = "") -> None:
        """`kubeconfig` None: as kubectl finds it; `context` "": the current one. Raises :class:`UsageError`."""
        from kubernetes import client, config
        from yaml import YAMLError

        file = str(kubeconfig.expanduser()) if kubeconfig else None
        settings = client.Configuration()
        try:
            contexts, current = config.list_kube_config_contexts(config_file=file)
            chosen = next((one for one in contexts if one["name"] == context), None) if context else current
            if chosen is None:
                names = ", ".join(one["name"] for one in contexts)
                raise UsageError(f"--context: there is no {context!r}", f"contexts: {names}")
            config.load_kube_config(
                config_file=file, context=chosen["name"], client_configuration=settings, persist_config=False
            )
        except (
            config.ConfigException,
            YAMLError,
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:
            where = file or "the kubeconfig (KUBECONFIG, or ~/.kube/config)"
            raise UsageError(
                f"--kubeconfig: {where} cannot be used: {_one_line(error)}", "a file that kubectl takes"
            ) from None
        settings.retries = False
        self.server = str(settings.host)
        self.namespace = str(chosen.get("context", {}).get("namespace") or "default")
        self._api = client.CoreV1Api(client.ApiClient(settings))

    def pod(self, namespace: str, name: str) -> Pod:
        data = self._read(f"pod {namespace}/{name}", self._api.read_namespaced_pod, name=name, namespace=namespace)
        return self._understood(f"pod {namespace}/{name}", pod_of, data)

    def pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        what = f"pods {selector} in namespace {namespace}"
        data = self._read(
            what, self._api.list_namespaced_pod, namespace=namespace, label_selector=selector, limit=PAGE
        )
        if (data.get("metadata") or {}).get("continue"):
            raise UsageError(f"--selector: {selector} fits more than {PAGE} pods", "a selector that fits fewer")
        return tuple(self._understood(what, pod_of, one) for one in data.get("items") or ())

    def node(self, name: str) -> ClusterNode:
        return self._understood(
            f"node {name}", cluster_node_of, self._read(f"node {name}", self._api.read_node, name=name)
        )

    def _read(self, what: str, ask: Callable[..., Any], **how: Any) -> Mapping[str, Any]:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = ask(**how, _preload_content=False, _request_timeout=(CONNECT_S, ANSWER_S))
            found = json.loads(answer.data)
        except ApiException as error:
            raise self._refused(what, error.status, str(error.reason or ""), str(error.body or "")) from None
        except (HTTPError, OSError) as error:
            raise self._silent(_one_line(error)) from None
        except ValueError:
            raise LabError(f"what answers at {self.server} is no cluster", "is the kubeconfig right?") from None
        return found if isinstance(found, Mapping) else {}

    def _silent(self, why: str) -> LabError:
        hint = "is this the right kubeconfig? kubectl --kubeconfig FILE get nodes"
        return LabError(f"the cluster at {self.server} does not answer: {why}", hint)

    def _refused(self, what: str, status: int | None, reason: str, body: str) -> UsageError | LabError:
        said = _message_in(body) or _one_line(reason)
        if (
            not status
        ):  # the client's word for a connection that failed, such as one to a server of another authority
            return self._silent(said)
        if status == 404:
            return NotThereError(
                f"the cluster at {self.server} has no {what}", "is it the kubeconfig of another one?"
            )
        if status == 400:
            return UsageError(f"the cluster refuses {what}: {said}", "see: kubectl get --help")
        if status in (401, 403):
            hint = "a kubeconfig that may get and list pods and get nodes"
            return UsageError(f"the cluster at {self.server} does not let {what} be read: {said}", hint)
        return LabError(f"the cluster at {self.server} failed at {what}: {status} {said}", "try again")

    def _understood(self, what: str, convert: Callable[[Mapping[str, Any]], T], data: Mapping[str, Any]) -> T:
        try:
            return convert(data)
        except (ValueError, TypeError, AttributeError) as error:
            raise LabError(
                f"the answer of {self.server} about {what} is not understood: {_one_line(error)}",
                "is that a Kubernetes API?",
            ) from None


def _message_in(body: str) -> str:
    """What a Status of the API says."""
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    return _one_line(found["message"]) if isinstance(found, dict) and found.get("message") else ""


def _one_line(what: object) -> str:
    return " ".join(str(what).split())[:300]
