"""The API of a cluster, as far as labctl reads it, over HTTP: pods and nodes are JSON that a test may change."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SHAPES = Path(__file__).with_name("pod_shapes")


def shape(name: str) -> dict[str, Any]:
    """A pod in the shape that the API of that version gives it; those called recorded a cluster has given."""
    data: dict[str, Any] = json.loads((SHAPES / f"{name}.json").read_text())
    return data


class ClusterApi:
    """What the cluster has, and what it was asked."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.fails: tuple[int, str] | None = None
        """Status and body of every answer from now on."""
        self.url = ""

    def add(self, pod: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        """A copy of the pod, with other metadata."""
        found = deepcopy(pod)
        found["metadata"] |= metadata
        self.pods[found["metadata"]["namespace"], found["metadata"]["name"]] = found
        return found

    def add_node(self, name: str, *addresses: str, boot_id: str = "b") -> None:
        """A node of the cluster."""
        listed = [{"type": "InternalIP", "address": one} for one in addresses]
        status = {"addresses": [*listed, {"type": "Hostname", "address": name}], "nodeInfo": {"bootID": boot_id}}
        self.nodes[name] = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "status": status}

    def answer(self, target: str) -> tuple[int, str]:
        """Status and body of a request."""
        self.asked.append(target)
        if self.fails is not None:
            return self.fails
        url = urlsplit(target)
        words, query = url.path.strip("/").split("/"), parse_qs(url.query)
        if words[:3] == ["api", "v1", "nodes"] and words[3] in self.nodes:
            return 200, json.dumps(self.nodes[words[3]])
        if words[:3] == ["api", "v1", "namespaces"] and words[4] == "pods":
            if len(words) == 5:
                return 200, json.dumps(self._listed(words[3], query.get("labelSelector", [""])[0]))
            if (words[3], words[5]) in self.pods:
                return 200, json.dumps(self.pods[words[3], words[5]])
        message = f'{words[-2]} "{words[-1]}" not found'
        return 404, json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": 404})

    def _listed(self, namespace: str, selector: str) -> dict[str, Any]:
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        items = [
            pod
            for (space, _), pod in sorted(self.pods.items())
            if space == namespace and wanted.items() <= pod["metadata"].get("labels", {}).items()
        ]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}


@contextmanager
def served(api: ClusterApi) -> Iterator[ClusterApi]:
    """The API on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = api.answer(self.path)
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kubeconfig(path: Path, url: str, namespace: str = "") -> Path:
    """A kubeconfig with contexts `here` and `there`, the second of nobody's cluster."""
    here = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "here", "preferences": {},
                "clusters": [
                    {"name": "c", "cluster": {"server": url}},
                    {"name": "d", "cluster": {"server": "http://127.0.0.1:1"}},
                ],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [
                    {"name": "here", "context": here},
                    {"name": "there", "context": {"cluster": "d", "user": "u"}},
                ],
            }
        )
    )  # fmt: skip
    return path
