"""Asking the agent over a login that runs other commands, too: for an install, which has one open anyway."""

from __future__ import annotations

import io
from collections.abc import Generator

from google.protobuf import json_format
from google.protobuf.message import Message

from labctl.errors import UnsupportedError
from labctl.lab.root import Root
from labctl.transport.base import ClosingTransport
from labctl.transport.ssh import AGENT, no_answer, parsed
from node_agent.api import agent_pb2 as pb
from node_agent.api.methods import find_method


class RootTransport(ClosingTransport):
    """:class:`labctl.transport.base.Transport` over a :class:`Root`, whose login stays open."""

    def __init__(self, root: Root) -> None:
        self._root, self.node = root, root.remote.node

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        body = json_format.MessageToJson(request, preserving_proto_field_name=True, indent=None).encode()
        done = self._root.ask(
            AGENT, "call", method, "--node", self.node.name, stdin=io.BytesIO(body), timeout_s=timeout_s
        )
        line = done.stdout.strip().encode()
        if not line:
            said = done.stderr.strip().splitlines()
            raise no_answer(self.node, method, done.status, said[-1] if said else "no message")
        return parsed(self.node, find_method(method), line)

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        raise UnsupportedError("an install watches nothing")
        yield

    def close(self) -> None:
        """Nothing: the login is somebody else's."""
