"""What became of an Apply whose answer was lost, and agents that are not who they should be."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from google.protobuf.message import Message

from labctl.errors import LabctlError, LabError, NodeDirtyError, UsageError
from labctl.lab.model import Node
from labctl.transport.base import AgentFailedError, ClosingTransport, ConnectError, NoAnswerError
from labctl.transport.client import AgentClient
from node_agent.api import agent_pb2 as pb
from node_agent.api.convert import injection_message
from node_agent.injection import InjectionView
from tests.unit.agents import view


class Script(ClosingTransport):
    """Answers each method with what the script says next: a message, or an error to raise."""

    def __init__(self, **script: list[Any]) -> None:
        self.node = Node(name="w1", address="x")
        self.script, self.asked = script, []  # type: tuple[dict[str, list[Any]], list[str]]

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        self.asked.append(method)
        answer = self.script[method].pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Message)
        return answer

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def listed(*views: InjectionView) -> pb.ListReply:
    return pb.ListReply(injections=[injection_message(v) for v in views])


def agent(transport: Script) -> AgentClient:
    now = iter(range(1000))
    return AgentClient(transport, clock=lambda: float(next(now)), sleep=lambda s: None)


LOST: list[Callable[[], LabError]] = [
    lambda: NoAnswerError("w1 did not answer Apply within 5 s", "is the node overloaded?"),
    lambda: ConnectError("refused", "nothing listens"),
]


@pytest.mark.parametrize("lost", LOST)
def test_an_apply_that_succeeded_is_found_by_its_id(lost: Callable[[], LabError]) -> None:
    states = [listed(view("inj-1", state="applying")), listed(view("inj-1"))]
    script = Script(Apply=[lost()], List=states)
    assert agent(script).apply("inj-1", "slow_disk", {}).state == "active"
    assert script.asked == ["Apply", "List", "List"]


@pytest.mark.parametrize(
    ("answers", "error", "hint"),
    [
        ([listed()], NoAnswerError, "inj-1 was not planted"),
        ([NoAnswerError("gone")], NoAnswerError, "whether inj-1 was planted is not known"),
        ([listed(view("inj-1", state="applying"))] * 9, NoAnswerError, "inj-1 is still being planted"),
        ([listed(view("inj-1", state="recovered", error="no room"))], AgentFailedError, ""),
        ([listed(view("inj-1", state="stuck", residue=("dm x",)))], NodeDirtyError, "shows what is left"),
    ],
)
def test_an_apply_that_did_not_is_told_as_it_is(answers: list[Any], error: type[LabctlError], hint: str) -> None:
    script = Script(Apply=[LOST[0]()], List=list(answers))
    with pytest.raises(error) as failed:
        agent(script).apply("inj-1", "slow_disk", {}, timeout_s=5)
    assert hint in failed.value.hint


@pytest.mark.parametrize("error", [UsageError("no"), ConnectError("other_ca", "no"), ConnectError("login", "no")])
def test_what_was_refused_is_not_asked_about(error: LabctlError) -> None:
    script = Script(Apply=[error])
    with pytest.raises(type(error)):
        agent(script).apply("inj-1", "slow_disk", {})
    assert script.asked == ["Apply"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (pb.FactsReply(node="w2", contract=1), "what answers as w1 is node w2"),
        (pb.FactsReply(node="w1", contract=9, agent_version="4.0"), r"version 4\.0\) speaks contract 9"),
    ],
)
def test_another_node_or_another_contract(reply: pb.FactsReply, words: str) -> None:
    with pytest.raises(LabError, match=words):
        agent(Script(Facts=[reply])).facts()
