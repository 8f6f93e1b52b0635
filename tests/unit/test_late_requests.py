"""Requests that arrive late, answers that cannot be true, and asking more nodes than there are threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from labctl.cli import fleet
from labctl.cli.fleet import Round, ask_all, some
from labctl.errors import LIES, LabError, NotThereError
from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from node_agent.api import agent_pb2 as pb
from node_agent.api.convert import injection_message
from node_agent.api.methods import find_method
from node_agent.caller import Caller
from node_agent.errors import ConflictError, NotFoundError
from node_agent.forestalled import KEPT_S, Forestalled
from node_agent.injection import InjectionView
from tests.unit.agents import FakeAgent, FakeInjector, view
from tests.unit.cli_world import World
from tests.unit.test_transport_client import Script, listed


def ask(agent: FakeAgent, method: str, **fields: Any) -> Any:
    return agent.service.call(method, find_method(method).request(**fields), Caller("test"))


class Strict(FakeInjector):
    """Knows what it does not have."""

    def recover(self, ids: tuple[str, ...] | None, why: str) -> tuple[InjectionView, ...]:
        for one in ids or ():
            self.view(one)
        return super().recover(ids, why)


@pytest.fixture
def agent() -> FakeAgent:
    made = FakeAgent()
    made.injector = made.service._injector = Strict()
    return made


def test_what_was_recovered_before_it_came_is_not_planted(agent: FakeAgent) -> None:
    with pytest.raises(NotFoundError):
        ask(agent, "Recover", ids=["inj-1"])
    with pytest.raises(ConflictError, match="inj-1 was recovered before it was planted"):
        ask(agent, "Apply", id="inj-1", fault="slow_disk")
    assert agent.injector.live == {}
    assert ask(agent, "Apply", id="inj-2", fault="slow_disk").state == pb.ACTIVE


def test_what_is_recovered_while_it_waits_for_its_turn_is_taken_back(agent: FakeAgent) -> None:
    """The request passed the first look, then stood behind the injector's lock while Recover found nothing."""
    planted = agent.injector.apply

    def behind_the_lock(*arguments: Any, **named: Any) -> InjectionView:
        with pytest.raises(NotFoundError):
            ask(agent, "Recover", ids=["inj-1"])
        return planted(*arguments, **named)

    agent.injector.apply = behind_the_lock  # type: ignore[method-assign]
    with pytest.raises(ConflictError):
        ask(agent, "Apply", id="inj-1", fault="slow_disk")
    assert agent.injector.live["inj-1"].state == "recovered"


def test_ids_are_kept_no_longer_than_a_request_can_wait() -> None:
    now = [0.0]
    forestalled = Forestalled(lambda: now[0])
    forestalled.add("a")
    now[0] = KEPT_S - 1
    assert "a" in forestalled and "b" not in forestalled
    now[0] = KEPT_S + 1
    assert "a" not in forestalled
    forestalled.add("b")
    assert len(forestalled._until) == 1


def test_a_node_that_did_not_answer_is_told_to_recover_what_it_may_not_have(world: World) -> None:
    asked: list[str] = []

    def lose(node: str, method: str) -> None:
        if node == "w2":
            asked.append(method)
        if (node, method) == ("w2", "Apply"):
            raise LabError("w2 did not answer Apply within 2 s")

    world.trouble = lose
    done = world.run("inject", "toy_delay", "--node", "all")
    assert done.code == 70 and "taken back on w1, w3" in done.err
    assert asked == ["Plan", "Apply", "Recover"]
    assert [i.injections() for i in world.injectors.values()] == [()] * 3


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (view("inj-1", node="w7"), "w1: its agent answers with injection inj-1 of w7, asked for inj-1"),
        (view("inj-9"), "w1: its agent answers with injection inj-9 of w1, asked for inj-1"),
    ],
)
def test_an_answer_for_somebody_else_is_not_believed(reply: InjectionView, words: str) -> None:
    with pytest.raises(LabError) as caught:
        AgentClient(Script(Apply=[injection_message(reply)])).apply("inj-1", "slow_disk", {})
    assert (caught.value.message, caught.value.hint) == (words, LIES)
    with pytest.raises(LabError):
        AgentClient(Script(List=[listed(reply)])).list(ids=("inj-1",))


def test_a_recovery_that_is_none_is_not_believed() -> None:
    over, live = view("inj-1", state="recovered"), view("inj-1")
    told = pb.RecoverReply(injections=[injection_message(over)])
    with pytest.raises(LabError, match=r"w1: says that it has recovered inj-1 \(active\), and lists it as live"):
        AgentClient(Script(Recover=[told], List=[listed(live)])).recover(("inj-1",))
    assert AgentClient(Script(Recover=[told], List=[listed()])).recover(("inj-1",)).injections == (over,)
    with pytest.raises(LabError, match="does not say what became of inj-2"):
        AgentClient(Script(Recover=[told], List=[listed()])).recover(("inj-1", "inj-2"))


def test_no_request_waits_longer_than_it_may() -> None:
    waited: list[float] = []

    class Watched(Script):
        def call(self, method: str, request: Any, timeout_s: float) -> Any:
            waited.append(timeout_s)
            return super().call(method, request, timeout_s)

    client = AgentClient(Watched(List=[listed(), listed()], Apply=[injection_message(view("a"))]), within_s=20.0)
    client.list()
    client.list(timeout_s=300)
    client.apply("a", "slow_disk", {})
    assert waited == [15.0, 20.0, 20.0]


def test_an_unknown_injection_is_told_apart_from_other_refusals(world: World) -> None:
    from labctl.transport.base import answered_error

    assert isinstance(answered_error("w1", pb.Error(code="not_found", message="m")), NotThereError)
    assert not isinstance(answered_error("w1", pb.Error(code="refused", message="m")), NotThereError)


def nodes(count: int) -> list[Node]:
    return [Node(name=f"w{n}", address="x") for n in range(count)]


def test_no_more_nodes_are_asked_at_once_than_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AT_ONCE", 7)
    monkeypatch.setattr(fleet, "SLOW_S", 60)
    lock, now, most = threading.Lock(), [0], [0]

    def answer(node: Node) -> str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.001)  # long enough for the others to come
        with lock:
            now[0] -= 1
        return node.name

    answers = ask_all(nodes(100), answer)
    assert list(answers.good) == [node.name for node in nodes(100)] and not answers.bad
    assert most[0] <= 7


def test_silent_nodes_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AT_ONCE", 4)
    monkeypatch.setattr(fleet, "SLOW_S", 0.01)
    monkeypatch.setattr(fleet, "MOST_AT_ONCE", 20)
    heard, silence = threading.Semaphore(0), threading.Event()

    def answer(node: Node) -> str:
        if int(node.name[1:]) < 12:
            silence.wait(10)
            return "late"
        heard.release()
        return "well"

    round_ = Round(nodes(50), answer)
    round_.start()
    waiting = threading.Thread(target=round_.answers, daemon=True)
    waiting.start()
    for _ in range(38):
        assert heard.acquire(timeout=5), "the others were asked while twelve of them were silent"
    assert round_._threads <= 20
    silence.set()
    waiting.join(5)
    assert sorted(round_.answers().good.values()) == ["late"] * 12 + ["well"] * 38


def test_after_an_interrupt_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AT_ONCE", 2)
    go, asked = threading.Event(), []

    def answer(node: Node) -> None:
        asked.append(node.name)
        go.wait(10)

    round_ = Round(nodes(10), answer)
    round_.start()
    threading.Timer(0.05, go.set).start()
    assert round_.settle(10)
    assert set(asked) <= {"w0", "w1"}


def test_a_sentence_names_some() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(map(str, range(45))) == "0, 1, 2, 3, 4, 5, 6, 7 and 37 more"
