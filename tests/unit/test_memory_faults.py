"""Limits, marks, frames and the programs that use up a machine: what they do when others meddle meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node_agent.catalog import make_fault
from node_agent.errors import ApplyError, ConflictError, Refusal
from node_agent.injector import Injector
from node_agent.steps.cgroup_limit import CgroupLimit
from node_agent.steps.group_kill import GroupKill
from node_agent.steps.oom_score import OomScore
from node_agent.steps.poisoned_page import PoisonedPage
from node_agent.steps.swap_file import SwapFile
from node_agent.stressors import limits, memory
from node_agent.stressors.limits import renew
from tests.contract.simulated import SimFile, SimulatedHost, fresh_kernel
from tests.contract.simulated_memory import kill

GROUP = "/sys/fs/cgroup/system.slice/cron.service"
LIMIT = CgroupLimit(group=GROUP, file="memory.high", value=8192, unit="cron.service", default="max")


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


def read(host: SimulatedHost) -> str:
    return host.read_text(LIMIT.path)


class TestLimit:
    def test_what_was_there_comes_back(self, host: SimulatedHost) -> None:
        host.kernel.texts[LIMIT.path] = "4096"
        undo = LIMIT.capture(host)
        LIMIT.apply(host)
        assert LIMIT.stands(host) and LIMIT.leftovers(host, undo)
        LIMIT.revert(host, undo)
        LIMIT.revert(host, undo)
        assert read(host) == "4096" and LIMIT.leftovers(host, undo) == ()

    def test_what_somebody_has_set_meanwhile_stays(self, host: SimulatedHost) -> None:
        undo = LIMIT.capture(host)
        LIMIT.apply(host)
        host.kernel.texts[LIMIT.path] = "12288"
        LIMIT.revert(host, undo)
        assert read(host) == "12288" and LIMIT.leftovers(host, undo) == ()

    @pytest.mark.parametrize(("says", "then"), [("MemoryHigh=16384\n", "16384"), ("MemoryHigh=infinity\n", "max")])
    def test_a_group_made_anew_gets_what_systemd_has(
        self, host: SimulatedHost, monkeypatch: pytest.MonkeyPatch, says: str, then: str
    ) -> None:
        host.kernel.texts[LIMIT.path] = "4096"
        host.kernel.files[GROUP] = SimFile(0, [], kind="directory", inode=7)
        undo = LIMIT.capture(host)
        LIMIT.apply(host)
        host.kernel.files[GROUP] = SimFile(0, [], kind="directory", inode=8)
        monkeypatch.setattr(host, "query", lambda argv, timeout_s=10.0: says)
        LIMIT.revert(host, undo)
        assert read(host) == then

    def test_one_that_is_gone_took_it_along(self, host: SimulatedHost) -> None:
        undo = LIMIT.capture(host)
        del host.kernel.texts[LIMIT.path]
        LIMIT.revert(host, undo)
        assert LIMIT.leftovers(host, undo) == ()
        with pytest.raises(ConflictError, match="any more"):
            LIMIT.capture(host)

    def test_the_root_has_none(self) -> None:
        with pytest.raises(ValueError, match="below the root"):
            CgroupLimit(group="/sys/fs/cgroup/../x", file="pids.max", value=1)


def test_nobody_else_of_a_group_is_killed(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the limit is written the others cannot be chosen; an agent that dies then leaves that to the next."""
    texts = host.kernel.texts
    texts[f"{GROUP}/cgroup.procs"] = "700\n701\n"
    texts["/proc/700/oom_score_adj"] = "-17"
    step = GroupKill(group=GROUP, file="memory.max", value=4 << 20, unit="cron.service", pid=701)
    undo = step.capture(host)
    assert list(undo["others"]) == ["700"]
    seen = []
    write = host.write_text

    def watched(path: str, text: str) -> None:
        if path == step.path:
            seen.append((texts["/proc/700/oom_score_adj"], texts["/proc/701/oom_score_adj"]))
        write(path, text)

    monkeypatch.setattr(host, "write_text", watched)
    step.apply(host)
    assert seen == [("-1000", "0")] and texts["/proc/700/oom_score_adj"] == "-17" and step.stands(host)
    texts["/proc/700/oom_score_adj"] = "-1000"  # as where the agent has ended in between
    assert any("700" in text for text in step.leftovers(host, undo))
    for _ in range(2):
        step.revert(host, undo)
        assert texts["/proc/700/oom_score_adj"] == "-17" and read_max(host) == "max"
        assert step.leftovers(host, undo) == ()
    texts["/proc/700/oom_score_adj"] = "-1000"
    step.revert(host, {**undo, "others": {"700": [1, "-17"]}})
    assert texts["/proc/700/oom_score_adj"] == "-1000", "a later process of that number is not meant"


def read_max(host: SimulatedHost) -> str:
    return host.read_text(f"{GROUP}/memory.max")


def test_a_later_process_of_the_same_number_is_not_marked_back(host: SimulatedHost) -> None:
    started = int(host.read_text("/proc/701/stat").rpartition(")")[2].split()[19])
    step = OomScore(pid=701, started=started, default=-900)
    undo = step.capture(host)
    step.apply(host)
    assert host.read_text(step.path) == "1000" and step.leftovers(host, undo)
    later = step.model_copy(update={"started": started + 1})
    later.revert(host, undo)
    assert host.read_text(step.path) == "1000" and later.leftovers(host, undo) == ()
    with pytest.raises(ConflictError, match="has ended"):
        later.capture(host)
    step.revert(host, None)
    assert host.read_text(step.path) == "-900"


def test_a_page_that_has_moved_is_left_alone(host: SimulatedHost) -> None:
    (page, *_) = host.frames.own_pages(701)
    step = PoisonedPage(frame=page.frame + 1, at=page.at, pid=701, started=7010)
    with pytest.raises(ApplyError, match="moved"):
        step.apply(host)
    assert not host.frames.is_poisoned(page.frame + 1)
    well = PoisonedPage(frame=page.frame, at=page.at, pid=701, started=7010)
    well.apply(host)
    with pytest.raises(ConflictError, match="already"):
        well.capture(host)


def test_swap_that_cannot_be_taken_away_is_left_over(host: SimulatedHost) -> None:
    step = SwapFile(path="/srv/data/swapfile.groundfault-x", mount="/srv/data", device="data", size_mib=8)
    assert step.used_kib(host) is None
    step.apply(host)
    assert step.used_kib(host) == 128
    assert step.leftovers(host, {})[0] == f"the kernel swaps to {step.path}"
    step.revert(host, {})
    assert step.leftovers(host, {}) == ()


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "parameters", "field"),
        [
            ("memory_pressure", {"available_mib": 700}, "available_mib"),
            ("memory_pressure", {"unit": "nobody-knows"}, "unit"),
            ("memory_pressure", {"unit": "ssh"}, "unit"),
            ("oom_kill", {"pid": 800}, "pid"),
            ("oom_kill", {"pid": 701, "cgroup": "/work"}, "pid"),
            ("memory_poison", {"file": "/srv/data"}, "file"),
            ("memory_poison", {"pid": 701, "pages": 5}, "pid"),
            ("swap_thrash", {"working_set_mib": 300}, "disk"),
            ("swap_thrash", {"disk": "nvme"}, "disk"),
            ("pids_exhausted", {"leak": 8000}, "leak"),
            ("shm_full", {"mount": "/srv/data"}, "mount"),
            ("shm_full", {"owner": "0"}, "owner"),
            ("shm_full", {"owner": "who"}, "owner"),
        ],
    )
    def test_before_anything_changes(
        self, name: str, parameters: dict[str, Any], field: str, tmp_path: Path
    ) -> None:
        host = SimulatedHost(fresh_kernel())
        injector = Injector(host, tmp_path, "w1")
        changes = injector.capabilities() and host.changes
        with pytest.raises(Refusal) as refused:
            injector.plan("inj-1", name, parameters)
        assert refused.value.field == field and refused.value.allowed and host.changes == changes

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("memory_pressure", {"unit": "cron", "available_mib": 100}),
            ("memory_pressure", {"available_mib": 63}),
            ("oom_kill", {}),
            ("memory_poison", {"pid": 1, "file": "/a"}),
            ("swap_thrash", {"working_set_mib": 20, "resident_mib": 20}),
            ("pids_exhausted", {"reserve": 31}),
        ],
    )
    def test_by_the_parameters_alone(self, name: str, parameters: dict[str, Any]) -> None:
        with pytest.raises(Refusal):
            make_fault(name, parameters)

    def test_room_that_there_is_no_memory_for(self, host: SimulatedHost, tmp_path: Path) -> None:
        host.kernel.texts["/proc/meminfo"] = "MemTotal: 1000000 kB\nMemAvailable: 350000 kB\n"
        with pytest.raises(Refusal, match="takes 300 MiB, and 341 MiB are available") as refused:
            Injector(host, tmp_path, "w1").plan("inj-1", "shm_full", {})
        assert refused.value.allowed == "55 or more"

    def test_a_node_that_swaps_does_not_run_out(self, host: SimulatedHost, tmp_path: Path) -> None:
        host.kernel.texts["/proc/swaps"] += "\n/dev/sdb partition 100 0 -2"
        injector = Injector(host, tmp_path, "w1")
        with pytest.raises(Refusal, match="swaps"):
            injector.plan("inj-1", "oom_kill", {"pid": 701, "where": "node"})
        steps = [step.describe() for step in injector.plan("inj-1", "oom_kill", {"pid": 701}).steps]
        assert any("memory.swap.max" in text for text in steps), "its group may not swap either"


def test_the_evidence_says_that_the_kernel_chose_the_injections_own_process(tmp_path: Path) -> None:
    host = SimulatedHost(fresh_kernel())
    injector = Injector(host, tmp_path, "w1")
    injector.apply("inj-1", "memory_pressure", {}, 60)
    del host.kernel.helpers["groundfault-inj-1"]
    host.kernel.texts["/sys/fs/cgroup/groundfault-inj-1/memory.events"] = "oom 1\noom_kill 1"
    found = injector.view("inj-1").evidence
    assert found is not None and not found.armed and "killed the process of this injection" in found.notes[0]
    del host.kernel.texts["/sys/fs/cgroup/groundfault-inj-1/memory.events"]
    (ended,) = injector.recover(None, "recover")
    assert ended.state == "recovered"


def test_every_kill_within_the_limit_counts(tmp_path: Path) -> None:
    host = SimulatedHost(fresh_kernel())
    injector = Injector(host, tmp_path, "w1")
    view = injector.apply("inj-1", "oom_kill", {"unit": "cron"}, 60)
    assert view.evidence is not None and view.evidence.hits == 1
    kill(host.kernel, GROUP)
    assert (evidence := injector.view("inj-1").evidence) is not None and evidence.hits == 2
    injector.recover(None, "recover")


class Turns:
    """In place of standard input: what happens in each turn, and then the end."""

    def __init__(self, *turns: Callable[[], object]) -> None:
        self.turns = list(turns)
        self.counters: dict[str, int] = {}

    def goes_on(self, seconds: float) -> bool:
        if not self.turns:
            return False
        self.turns.pop(0)()
        return True


class Memory:
    """So many KiB, some of which a program takes."""

    def __init__(self, available: int) -> None:
        self.available = available

    def take(self, kib: int) -> Chunk | None:
        if kib > self.available:
            return None
        self.available -= kib
        return Chunk(self, kib)


class Chunk:
    def __init__(self, memory: Memory, kib: int) -> None:
        self.memory, self.kib = memory, kib

    def __len__(self) -> int:
        return self.kib << 10

    def close(self) -> None:
        self.memory.available += self.kib


@pytest.fixture
def ram(monkeypatch: pytest.MonkeyPatch) -> Memory:
    found = Memory(100_000)
    monkeypatch.setattr(memory, "available_kib", lambda: found.available)
    monkeypatch.setattr(memory, "took", found.take)
    monkeypatch.setattr(memory, "go_first", lambda score: None)
    return found


def nothing() -> None:
    pass


def test_memory_is_held_and_given_back_to_those_who_need_it(
    ram: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def others(kib: int) -> Callable[[], None]:
        def take() -> None:
            seen.append(ram.available)
            ram.available -= kib

        return take

    turns = Turns(*[nothing] * 30, others(20_000), *[nothing] * 10, others(-20_000), *[nothing] * 10, others(0))
    memory.hold({"leave_kib": 50_000}, turns)  # type: ignore[arg-type]
    least = memory.CHUNK_KIB
    assert [50_000 <= kib < 50_000 + least for kib in seen] == [True] * 3, seen
    assert capsys.readouterr().out == "ready\n" and turns.counters["held_kib"] > 40_000


def test_memory_is_taken_until_somebody_is_killed(ram: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "stay_in_memory", nothing)
    monkeypatch.setattr(memory, "number_of", lambda path, key: int(ram.available < memory.SMALL_KIB))
    assert memory.fill(0, os.getppid()) == (99_328, 0)
    assert ram.available == 100_000, "all is given back"


def test_nothing_more_is_taken_by_one_whose_parent_has_ended(ram: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "stay_in_memory", nothing)
    monkeypatch.setattr(memory, "number_of", lambda path, key: 0)
    assert memory.fill(0, os.getppid() + 1) == (0, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_the_one_that_takes_memory_may_be_killed_too(
    killed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = iter((5, 6))

    def fill(before: int, parent: int) -> tuple[int, int]:
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return 77, 1

    monkeypatch.setattr(memory, "stay_in_memory", nothing)
    monkeypatch.setattr(memory, "fill", fill)
    monkeypatch.setattr(memory, "number_of", lambda path, key: next(kills))
    turns = Idle()
    memory.exhaust({}, turns)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "ready\n"
    assert turns.counters == ({"killed_too": 1} if killed else {"held_kib": 77, "asked_for": 1})


def test_one_that_takes_memory_and_ends_for_another_reason_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "stay_in_memory", nothing)
    monkeypatch.setattr(memory, "fill", lambda before, parent: (77, 0))
    monkeypatch.setattr(memory, "number_of", lambda path, key: 5)
    with pytest.raises(SystemExit, match="killed nobody"):
        memory.exhaust({}, Idle())  # type: ignore[arg-type]


class Idle:
    """Standard input of a process that is asked nothing, and that ends when it has nothing more to do."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}

    def goes_on(self, seconds: float) -> bool:
        return seconds < 1


def test_a_limit_is_set_again_where_its_group_was_made_anew(tmp_path: Path) -> None:
    group, path = tmp_path / "group", tmp_path / "group" / "pids.max"
    said: list[str] = []

    def make(text: str) -> Callable[[], None]:
        def work() -> None:
            said.append(path.read_text() if path.exists() else "")
            if group.exists():
                path.unlink()
                group.rename(tmp_path / f"old-{len(said)}")
            group.mkdir()
            path.write_text(text)

        return work

    make("7")()
    before = group.stat().st_ino
    admin = Turns(nothing, lambda: path.write_text("9"), nothing, make("max"), nothing, make("5"), nothing)
    limits.keep({"inode": before, "limits": {str(path): "7"}}, admin)  # type: ignore[arg-type]
    assert said == ["", "9", "7"], "what an administrator sets stays, in the same group"
    assert path.read_text() == "7" and admin.counters == {"renewed": 2}
    assert renew(str(tmp_path / "gone" / "pids.max"), "7") == 0


def test_a_question_is_answered_with_the_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs speak as `host.helpers` expects: lines of JSON."""
    for module in (memory, limits):
        answering = module.Answering()
        answering.counters = {"held": 3}
        asked = [b"counters\ncounters\n", b""]
        said: list[str] = []
        monkeypatch.setattr(module.select, "select", lambda *_: ([0], [], []))
        monkeypatch.setattr(module.os, "read", lambda fd, size, asked=asked: asked.pop(0))
        monkeypatch.setattr("builtins.print", lambda text, flush, said=said: said.append(text))
        assert answering.goes_on(1.0) and [json.loads(text) for text in said] == [{"held": 3}] * 2
        assert not answering.goes_on(1.0)
        monkeypatch.undo()
