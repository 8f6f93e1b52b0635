"""The log on a node of who asked for changes: what is in it, what it survives, what shows when it was touched."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.transport.client import AgentClient
from node_agent.api import agent_pb2 as pb
from node_agent.api.methods import METHODS, find_method
from node_agent.audit import FILE, FILES, READING, UNDOING, AuditLog, Entry
from node_agent.caller import Caller
from node_agent.errors import AgentError, ConflictError, StorageError
from node_agent.service import Service
from tests.unit.agents import FakeAgent
from tests.unit.cli_world import DirectTransport, World

ALICE = Caller("alice", "ipv4:192.0.2.1:5")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def log_in(directory: Path, **options: Any) -> AuditLog:
    return AuditLog(directory, "boot-1", lambda: 42.0, lambda: 1.8e9, **options)


def ask(log: AuditLog, method: str = "Extend", caller: Caller = ALICE, **fields: Any) -> None:
    with log.request(method, find_method(method).request(**fields), caller):
        pass


def entries(log: AuditLog) -> tuple[Entry, ...]:
    found, _, problems = log.read(limit=10_000)
    assert problems == ()
    return found


def test_who_what_when_and_how_it_ended(directory: Path) -> None:
    log = log_in(directory)
    ask(log, "Apply", id="a-1", fault="slow_disk", parameters_json='{"delay_ms": 5}', lease_s=60)
    with pytest.raises(ConflictError), log.request("Recover", pb.RecoverRequest(all=True), ALICE):
        raise ConflictError("it is held by b-1")
    one, two = entries(log)
    assert (one.who, one.where, one.method, one.result) == ("alice", "ipv4:192.0.2.1:5", "Apply", "ok")
    assert one.what == {"id": "a-1", "fault": "slow_disk", "lease_s": 60.0, "parameters": {"delay_ms": 5}}
    assert (one.time_unix_s, one.boot_id, one.boottime_s) == (1.8e9, "boot-1", 42.0)
    assert (two.method, two.result, two.message) == ("Recover", "conflict", "it is held by b-1")


def test_every_method_is_logged_unless_it_only_reads() -> None:
    assert set(METHODS) > READING and set(METHODS) > UNDOING
    changing = set(METHODS) - READING
    assert changing == {"Apply", "Extend", "Recover", "SetClock", "PrepareDisk", "RepairDisk"}


def test_reading_leaves_no_line(directory: Path) -> None:
    log = log_in(directory)
    for method in sorted(READING - {"Watch"}):
        ask(log, method)
    assert entries(log) == ()


def test_a_request_is_on_disk_before_it_is_carried_out(directory: Path) -> None:
    """The machine may end by it: the next agent tells that nothing is known of its result."""
    log = log_in(directory)
    with log.request("Apply", pb.ApplyRequest(id="a-1", fault="kernel_panic"), ALICE):
        (one,) = entries(log_in(directory))
    assert (one.what["fault"], one.result) == ("kernel_panic", "")
    assert [one.result for one in entries(log_in(directory))] == ["ok"]


def test_numbers_and_sums_go_on_after_a_restart(directory: Path) -> None:
    ask(log_in(directory), id="a")
    again = log_in(directory)
    ask(again, id="b")
    assert [one.number for one in entries(again)] == [1, 3]


def test_its_size_is_bounded(directory: Path) -> None:
    log = log_in(directory, max_bytes=2000)
    for number in range(400):
        ask(log, id=f"a-{number}")
    files = sorted(path.name for path in directory.iterdir())
    assert files == sorted([FILE, *(f"{FILE}.{n}" for n in range(1, FILES + 1))])
    assert sum(path.stat().st_size for path in directory.iterdir()) < (FILES + 1) * 2500
    found, oldest, problems = log.read(limit=10_000)
    assert problems == () and oldest > 1
    assert found[-1].what == {"id": "a-399"} and found[-1].result == "ok"


def test_a_long_request_is_cut_and_a_text_is_summed(directory: Path) -> None:
    log = log_in(directory)
    ask(log, "Recover", ids=[f"injection-{n}" for n in range(1000)])
    ask(log, "Apply", id="a", fault="bpf_program", parameters_json=json.dumps({"program": "x" * 5000}))
    ask(log, "Apply", id="b", fault="f", parameters_json="no json")
    one, two, three = entries(log)
    assert len(one.what["begins"]) == 2000
    assert "5000 bytes, sha256" in two.what["parameters"]["program"]
    assert "no json" in three.what["not understood"]


def test_what_a_power_cut_left_of_a_line_is_told_and_nothing_else_is_lost(directory: Path) -> None:
    ask(log_in(directory), id="a")
    with (directory / FILE).open("ab") as handle:
        handle.write(b'{"n":3,"time":18000')
    log = log_in(directory)
    ask(log, id="b")
    found, _, problems = log.read()
    assert [one.what["id"] for one in found] == ["a", "b"]
    assert problems == (f"{FILE} line 3 cannot be read",)


def changed(text: str) -> str:
    return text.replace("alice", "mallory", 1)


def taken_out(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join((*lines[:2], *lines[4:]))


def made_longer(text: str) -> str:
    return text.replace('"id":"a-2"', '"id":"a-2","x":1')


@pytest.mark.parametrize("touch", [changed, taken_out, made_longer])
def test_a_line_that_was_touched_shows(directory: Path, touch: Callable[[str], str]) -> None:
    log = log_in(directory)
    for number in range(4):
        ask(log, id=f"a-{number}")
    assert log.read()[2] == ()
    file = directory / FILE
    file.write_text(touch(file.read_text()))
    assert len(log.read()[2]) >= 1


def test_nothing_is_planted_that_cannot_be_logged(directory: Path) -> None:
    directory.write_text("a file where a directory should be")
    log = log_in(directory)
    with pytest.raises(StorageError, match="nothing was changed"):
        ask(log, "Apply", id="a")


def test_recovery_is_not_held_up_by_the_log(directory: Path) -> None:
    directory.write_text("a file where a directory should be")
    done = []
    with log_in(directory).request("Recover", pb.RecoverRequest(all=True), ALICE):
        done.append("recovered")
    assert done == ["recovered"]


def test_only_root_reads_it(directory: Path) -> None:
    ask(log_in(directory))
    assert (directory.stat().st_mode & 0o777, (directory / FILE).stat().st_mode & 0o777) == (0o700, 0o600)


def test_somebody_who_is_not_let_in_does_not_fill_it(directory: Path) -> None:
    log = log_in(directory)
    for _ in range(50):
        log.turned_away(Caller("bob", "x"), "revoked on a day")
    log.turned_away(Caller("carol", "y"), "revoked on a day")
    assert [(one.who, one.result) for one in entries(log)] == [("bob", "revoked"), ("carol", "revoked")]


def test_many_at_once(directory: Path) -> None:
    log = log_in(directory)
    threads = [threading.Thread(target=ask, args=(log,), kwargs={"id": f"a-{n}"}) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.what["id"] for one in entries(log)) == sorted(f"a-{n}" for n in range(16))
    assert {one.result for one in entries(log)} == {"ok"}


def served(directory: Path) -> tuple[FakeAgent, AgentClient]:
    agent = FakeAgent()
    agent.service = Service(agent.injector, agent.machine, "w1", audit=log_in(directory))  # type: ignore[arg-type]
    from labctl.lab.model import Node

    transport = DirectTransport(Node(name="w1", address="h"), agent.service, lambda node, method: None)
    return agent, AgentClient(transport)


def test_it_is_read_by_the_contract(directory: Path) -> None:
    agent, client = served(directory)
    client.apply("a-1", "slow_disk", {"delay_ms": 7})
    agent.injector.fail["apply"] = StorageError("no room")
    with pytest.raises(Exception, match="no room"):
        client.apply("a-2", "slow_disk", {})
    agent.injector.fail["apply"] = ZeroDivisionError("bug")
    with pytest.raises(Exception, match="a bug in the agent"):
        client.apply("a-3", "slow_disk", {})
    report = client.audit()
    assert [(one.who, one.what["id"], one.result) for one in report.entries] == [
        ("test", "a-1", "ok"), ("test", "a-2", "storage"), ("test", "a-3", "internal"),
    ]  # fmt: skip
    assert (report.oldest, report.problems) == (1, ())
    assert [one.what["id"] for one in client.audit(after=1, limit=1).entries] == ["a-3"]


def test_an_error_is_what_the_client_gets(directory: Path) -> None:
    agent, _ = served(directory)
    agent.injector.fail["extend"] = AgentError("no")
    with pytest.raises(AgentError, match="no"):
        agent.service.call("Extend", pb.ExtendRequest(id="x"), ALICE)


def test_labctl_audit(world: World, directory: Path) -> None:
    log = log_in(directory)
    world.audits["w1"] = log
    ask(log, "Apply", id="a-1", fault="slow_disk", parameters_json='{"delay_ms": 5}')
    ask(log, caller=Caller("bob", "uid 0"), id="a-1", lease_s=30)
    done = world.run("audit", "w1")
    assert done.code == 0
    head, one, two = done.out.splitlines()
    assert head.split() == ["WHEN", "WHO", "FROM", "ASKED", "FOR", "RESULT"]
    assert one.split()[:5] == ["2027-01-15", "08:00:00", "alice", "ipv4:192.0.2.1:5", "apply"]
    assert "slow_disk a-1" in one and 'parameters={"delay_ms": 5}' in one and one.endswith("ok")
    assert "bob" in two and "extend a-1 lease_s=30" in two
    assert world.run("audit", "w1", "--who", "bob").out.count("\n") == 2
    data = world.run("audit", "w1", "w2", "--json").data
    assert len(data["nodes"]["w1"]["entries"]) == 2 and data["nodes"]["w2"]["entries"] == []
    file = directory / FILE
    file.write_text(changed(file.read_text()))
    spoiled = world.run("audit", "w1")
    assert spoiled.code == 1 and "w1: the log is not as it was written" in spoiled.err
    assert world.run("audit").code == 64
    world.down["w1"] = "off"
    assert world.run("audit", "w1").code == 70
    assert [path.name for path in directory.iterdir()] == [FILE]
