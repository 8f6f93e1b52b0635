"""Some agents of a fleet in one process: each has its own port, certificate, injector and simulated machine.

`python -m tests.bench.fleet.agents PKI STATE FIRST LAST STEP` serves every so many-th node over gRPC with TLS and
prints their ports as JSON. Then each line on standard input is an order, a JSON object, answered by one: `moods`
gives nodes a mood and says for which methods, `live` counts injections that stand. It ends with its input.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from labctl.pki import LabAuthority, node_id
from node_agent.api import agent_pb2 as pb
from node_agent.api.methods import METHODS, SERVICE, Method
from node_agent.caller import Caller
from node_agent.errors import AgentError
from node_agent.injector import Injector
from node_agent.server import _OPTIONS, _abort
from node_agent.service import Service
from tests.contract.simulated import SimulatedHost, fresh_kernel

THREADS = 256
"""For all agents of a process: more than can be silent at once."""

NOBODY_S = 600.0
"""How long a silent agent keeps a request."""


class LightHost(SimulatedHost):
    """The simulated machine of the contract tests, which finds files faster."""

    def glob(self, pattern: str) -> Sequence[str]:
        found = patterns(pattern).match
        return sorted(path for path in {*self.kernel.files, *self.kernel.texts} if found(path))


@functools.cache
def patterns(pattern: str) -> re.Pattern[str]:
    """As :meth:`SimulatedHost.glob` understands it."""
    flat = [pattern.replace("**/", some).replace("**", "*") for some in ("", "*/")]
    return re.compile("|".join(fnmatch.translate(one) for one in flat))


class MoodyService(Service):
    """The real service, which can be silent, late, or lie."""

    mood, moody_about, late_s = "", frozenset[str](), 0.0

    def call(self, method: str, request: Message, caller: Caller) -> Message:
        if method not in self.moody_about:
            return super().call(method, request, caller)
        if self.mood == "silent":
            self._closing.wait(NOBODY_S)
        elif self.mood == "late":
            self._closing.wait(self.late_s)
        elif self.mood == "liar":
            return self._lie(method, request, caller)
        return super().call(method, request, caller)

    def _lie(self, method: str, request: Message, caller: Caller) -> Message:
        """Says of an injection that it is another node's, or that it is recovered when nobody touched it."""
        if isinstance(request, pb.RecoverRequest):
            told = super().call("List", pb.ListRequest(ended=True, ids=request.ids), caller)
            assert isinstance(told, pb.ListReply)
            for one in told.injections:
                one.state = pb.RECOVERED
            return pb.RecoverReply(injections=told.injections)
        reply = super().call(method, request, caller)
        if isinstance(reply, pb.Injection):
            reply.node = "n0"
        return reply


class Agent:
    """One of them."""

    def __init__(self, name: str, state: Path) -> None:
        (state / name).mkdir()
        host = LightHost(fresh_kernel())
        self.injector = Injector(host, state / name, name)
        self.injector.start()
        self.injector.capabilities()
        self.service = MoodyService(self.injector, host, name, time.time)


def serve(agents: Mapping[str, Agent], authority: LabAuthority) -> tuple[grpc.Server, dict[str, int]]:
    """One server for all, with a port and a certificate for each: a thousand servers would mostly wake each other.

    Options, handlers' errors and limits are those of `node_agent.server`. Whom a request is for is the name that
    the client has verified.
    """
    by_name = {node_id(name, authority.lab): one.service for name, one in agents.items()}

    def handler(method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        def one(request: Message, context: Any) -> Message:
            meant = context._rpc_event.call_details.host.decode()
            try:
                return by_name[meant].call(method.name, request, Caller("labctl"))
            except AgentError as error:
                _abort(context, error)

        return grpc.unary_unary_rpc_method_handler(
            one,
            request_deserializer=method.request.FromString,
            response_serializer=method.reply.SerializeToString,
        )

    handlers = {name: handler(method) for name, method in METHODS.items() if not method.streams}
    server = grpc.server(ThreadPoolExecutor(THREADS), options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    ports = {}
    for name in agents:
        files = authority.node_files(name)
        credentials = grpc.ssl_server_credentials(
            [(files["node.key"], files["node.pem"])], root_certificates=files["ca.pem"], require_client_auth=True
        )
        ports[name] = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, ports


def obey(agents: Mapping[str, Agent], order: Mapping[str, Any]) -> Any:
    """Do as one line says."""
    if "moods" in order:
        for name, one in agents.items():
            one.service.mood = order["moods"].get(name, "")
            one.service.moody_about = frozenset(order.get("about", ()))
            one.service.late_s = float(order.get("late_s", 0))
        return True
    return {name: len(found) for name, one in agents.items() if (found := one.injector.injections())}


def main() -> None:
    """Serve until the input ends."""
    pki, state = Path(sys.argv[1]), Path(sys.argv[2])
    first, last, step = map(int, sys.argv[3:6])
    authority = LabAuthority.load(pki)
    agents = {f"n{n}": Agent(f"n{n}", state) for n in range(first, last + 1, step)}
    server, ports = serve(agents, authority)
    print(json.dumps(ports), flush=True)
    for line in sys.stdin:
        print(json.dumps(obey(agents, json.loads(line))), flush=True)
    for one in agents.values():
        one.service.close()
    server.stop(0)


if __name__ == "__main__":
    main()
