"""The dispatcher: every method, bad input, bugs, and watching."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from node_agent.api import agent_pb2 as pb
from node_agent.api import convert
from node_agent.api.methods import METHODS, find_method
from node_agent.caller import Caller
from node_agent.errors import (
    AgentError,
    ConflictError,
    NotFoundError,
    Refusal,
    StoppedError,
    StorageError,
)
from node_agent.fault import Facts, Fault, Missing, PlanNotes, Target
from node_agent.injection import Plan
from node_agent.service import MAX_WATCHERS
from node_agent.steps.base import Resource, Step
from node_agent.version import CONTRACT
from tests.unit.agents import WALL, FakeAgent, view


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


def ask(agent: FakeAgent, method: str, **fields: Any) -> Any:
    return agent.service.call(method, find_method(method).request(**fields), Caller("test"))


def test_every_method_of_the_contract_is_served(agent: FakeAgent) -> None:
    served = {*agent.service._handlers, "Watch"}
    assert served == set(METHODS)


def test_facts_do_not_wait_for_probes(agent: FakeAgent) -> None:
    reply = ask(agent, "Facts")
    assert (reply.node, reply.contract, reply.clock_unix_s, reply.boottime_s) == ("w1", CONTRACT, WALL, 42.0)
    assert (reply.os, reply.memory_mib, reply.stopped) == ("Debian", 2000, False)
    assert agent.injector.asked == []


def test_probe(agent: FakeAgent) -> None:
    report = convert.probe_report(ask(agent, "Probe", again=True))
    assert report.capabilities[0].remedy == "modprobe"
    assert [(f.fault, f.available, len(f.missing)) for f in report.faults] == [
        ("slow_disk", False, 1),
        ("full_disk", True, 0),
    ]
    assert agent.injector.asked == [("capabilities", True)]


def test_apply_passes_everything_and_gives_the_whole_view(agent: FakeAgent) -> None:
    reply = ask(agent, "Apply", id="inj-1", fault="slow_disk", parameters_json='{"delay_ms": 7}', lease_s=30)
    assert agent.injector.asked == [("apply", "inj-1", "slow_disk", {"delay_ms": 7}, 30.0)]
    assert convert.injection_view(reply) == agent.injector.live["inj-1"]


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": NaN}', '{"a": Infinity}', "3", "[" * 100_000])
def test_parameters_are_an_object_of_numbers(agent: FakeAgent, text: str) -> None:
    with pytest.raises(Refusal) as refused:
        ask(agent, "Apply", id="inj-1", fault="slow_disk", parameters_json=text)
    assert refused.value.field == "parameters"
    assert agent.injector.asked == []


@pytest.mark.parametrize(
    ("fields", "asked", "stopped"),
    [
        ({"ids": ["inj-1"]}, [("recover", ("inj-1",), "recover")], False),
        ({"all": True}, [("recover", None, "recover")], False),
        ({"stop": "SET"}, [("recover", None, "stop")], True),
        ({"all": True, "stop": "SET"}, [("recover", None, "stop")], True),
        ({"stop": "CLEAR"}, [], False),
    ],
)
def test_recover(agent: FakeAgent, fields: dict[str, Any], asked: list[Any], stopped: bool) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    reply = convert.injection_list(ask(agent, "Recover", **fields))
    assert agent.injector.asked == asked
    assert reply.stopped is stopped
    assert all(one.state == "recovered" for one in reply.injections)


@pytest.mark.parametrize("fields", [{}, {"ids": ["inj-1"], "all": True}, {"ids": ["inj-1"], "stop": "SET"}])
def test_recover_is_told_exactly_what(agent: FakeAgent, fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        ask(agent, "Recover", **fields)
    assert agent.injector.asked == [] and agent.injector.stopped is False


def test_list_extend_and_residue(agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1", evidence=None, residue=("dm x",), error="why")
    assert convert.injection_list(ask(agent, "List", ended=True)).injections == (agent.injector.live["inj-1"],)
    assert ask(agent, "Extend", id="inj-1", lease_s=5).id == "inj-1"
    assert convert.residue_entries(ask(agent, "Residue")) == agent.injector.residue()


class Nudge(Fault):
    name = "nudge"
    summary = "nudges"
    operator_sees = "a nudge"
    far_mm: int = 1


class Nudging(Step):
    def describe(self) -> str:
        return "nudge it"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("dm", "vdb", 3, 9),)


class Elbow(Target):
    def describe(self) -> str:
        return "the elbow"


def test_plan_goes_there_and_back() -> None:
    notes = PlanNotes(backend="dm", covers=("read",), not_covered=("mmap",), warnings=("w",))
    missing = (Missing(capability="room", reason="none", remedy="make some"),)
    facts = Facts(
        node="w1", kernel="", boot_id="", os="", python="", agent_version="", cpus=1, memory_mib=1, mounts=()
    )
    plan = Plan(
        fault=Nudge(far_mm=2),
        facts=facts,
        target=Elbow(),
        notes=notes,
        steps=(Nudging(),),
        missing=missing,
    )
    seen = convert.plan_view(convert.plan_message(plan))
    assert (seen.fault, seen.backend, seen.covers, seen.not_covered) == ("nudge", "dm", ("read",), ("mmap",))
    assert (seen.target, seen.operator_sees, seen.reversible) == ("the elbow", "a nudge", "yes")
    assert seen.parameters == {"far_mm": 2, "seed": 0} and seen.missing == missing
    assert seen.steps[0].model_dump() == {
        "kind": "Nudging", "description": "nudge it", "resources": ("dm vdb [3, 9)",), "data": {},
    }  # fmt: skip


def test_set_clock(agent: FakeAgent) -> None:
    change = convert.clock_change(ask(agent, "SetClock", unix_s=WALL + 3600))
    assert (change.before_unix_s, change.after_unix_s) == (WALL, WALL + 3600)


@pytest.mark.parametrize("unix_s", [0.0, -1.0, 1e12, float("nan"), float("inf")])
def test_no_clock_outside_reason(agent: FakeAgent, unix_s: float) -> None:
    with pytest.raises(Refusal, match="unix_s"):
        ask(agent, "SetClock", unix_s=unix_s)
    assert agent.machine.set_to == []


def test_a_machine_that_refuses_is_told_in_one_line(agent: FakeAgent) -> None:
    agent.machine.refusal = PermissionError(1, "Operation not permitted")
    with pytest.raises(AgentError, match=r"the machine refused: .*not permitted") as failed:
        ask(agent, "SetClock", unix_s=WALL)
    assert failed.value.code == "internal"


def test_a_bug_is_logged_and_answered(agent: FakeAgent, caplog: pytest.LogCaptureFixture) -> None:
    agent.injector.fail["apply"] = KeyError("lost")
    with pytest.raises(AgentError, match="a bug in the agent: KeyError") as failed:
        ask(agent, "Apply", id="inj-1", fault="slow_disk")
    assert failed.value.code == "internal"
    assert "Traceback" in caplog.text and "Apply inj-1 from test" in caplog.text


def test_one_log_line_says_who_what_and_how(agent: FakeAgent, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    agent.injector.fail["extend"] = NotFoundError("no injection")
    ask(agent, "Apply", id="inj-1", fault="slow_disk")
    with pytest.raises(NotFoundError):
        ask(agent, "Extend", id="inj-2\nforged line", lease_s=1)
    good, bad = [record.getMessage() for record in caplog.records]
    assert good.startswith("Apply inj-1 from test: ok in ")
    assert bad.startswith("Extend 'inj-2\\nforged line' from test: not_found: no injection in ")


def test_unknown_method(agent: FakeAgent) -> None:
    with pytest.raises(NotFoundError, match="there is no method 'Destroy'") as unknown:
        agent.service.call("Destroy", pb.FactsRequest(), Caller("test"))
    assert "Apply" in unknown.value.allowed


def test_watch_ends_with_the_injection(agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    answers = agent.service.watch(pb.WatchRequest(id="inj-1", interval_s=0.2), Caller("test"), lambda s: False)
    assert next(answers).state == pb.ACTIVE
    agent.injector.recover(None, "expired")
    assert [a.state for a in answers] == [pb.RECOVERED]


def test_watch_ends_when_the_client_leaves(agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    leaving = iter([True])
    answers = agent.service.watch(pb.WatchRequest(id="inj-1"), Caller("test"), lambda s: next(leaving))
    assert len(list(answers)) == 1


@pytest.mark.parametrize("interval_s", [0.01, -1.0, 3600.0, float("nan")])
def test_watch_interval_is_bounded(agent: FakeAgent, interval_s: float) -> None:
    with pytest.raises(Refusal, match="interval_s"):
        next(
            agent.service.watch(pb.WatchRequest(id="inj-1", interval_s=interval_s), Caller("test"), lambda s: True)
        )


def test_watchers_are_bounded_and_give_their_place_back(agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    request = pb.WatchRequest(id="inj-1")

    def watch() -> Any:
        return agent.service.watch(request, Caller("test"), lambda s: True)

    watching = [watch() for _ in range(MAX_WATCHERS)]
    for one in watching:
        next(one)
    with pytest.raises(ConflictError, match="too many"):
        next(watch())
    watching[0].close()
    assert next(watch()).id == "inj-1"
    with pytest.raises(NotFoundError):
        next(agent.service.watch(pb.WatchRequest(id="inj-9"), Caller("test"), lambda s: True))


def test_an_agent_that_ends_plants_nothing_but_recovers(agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    agent.service.close()
    with pytest.raises(StoppedError):
        ask(agent, "Apply", id="inj-2", fault="slow_disk")
    assert ask(agent, "Recover", all=True).injections[0].state == pb.RECOVERED


def test_texts_of_errors_are_one_bounded_line() -> None:
    message = convert.error_message(StorageError("a\nb" + "x" * 5000, allowed="c\td"))
    assert message.message.startswith("a bx") and len(message.message) == convert.MAX_TEXT
    assert (message.code, message.allowed) == ("storage", "c d")
