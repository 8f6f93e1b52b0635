"""The oracle of scope: what it accepts, what it must not, and what its script says of a real machine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.lab.remote import Output
from labctl.oracles.on_node import scope as on_node
from labctl.oracles.scope import Scope, differences, tidy
from labctl.run.oracle import Window
from labctl.run.verdict import Outcome
from tests.unit.lookouts import PythonBySh

WINDOW = Window(begin_s=0, end_s=60)
BEFORE = {
    "w1": {"unit": {"nginx.service": "active", "cron.service": "active"}, "package": {"nginx": "1.26 installed"}},
    "w2": {"file": {"/etc/postgresql/17/main/pg_hba.conf": "postgres:postgres 640 "}, "firewall": {}},
}


def changed(node: str, category: str, item: str, text: str | None) -> dict[str, Any]:
    after: dict[str, Any] = {n: {c: dict(items) for c, items in state.items()} for n, state in BEFORE.items()}
    items = after[node].setdefault(category, {})
    if text is None:
        del items[item]
    else:
        items[item] = text
    return after


def judged(after: dict[str, Any], *permitted: str) -> Any:
    return Scope(permitted=permitted).judge(BEFORE, after, WINDOW)


def test_nothing_changed() -> None:
    assert judged(BEFORE).outcome is Outcome.PASS and judged(BEFORE).measures == {"changes": 0}


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (changed("w1", "unit", "cron.service", "inactive"), "w1:unit cron.service was active, is inactive"),
        (changed("w1", "package", "nginx", None), "w1:package nginx was 1.26 installed, is nothing"),
        (changed("w2", "firewall", "inet mine", "drop"), "w2:firewall inet mine was nothing, is drop"),
        ({**BEFORE, "w3": {"unit": {"x.service": "active"}}}, "w3:unit x.service was nothing, is active"),
        (
            {"w1": BEFORE["w1"]},
            "w2:file /etc/postgresql/17/main/pg_hba.conf was postgres:postgres 640 , is nothing",
        ),
    ],
)
def test_each_change_is_told(after: dict[str, Any], reason: str) -> None:
    found = judged(after)
    assert (found.outcome, found.reasons) == (Outcome.FAIL, (reason,))


def test_what_a_problem_permits() -> None:
    after = changed("w2", "file", "/etc/postgresql/17/main/pg_hba.conf", "postgres:postgres 600 ")
    assert judged(after, "w2:file /etc/postgresql/*").outcome is Outcome.PASS
    assert judged(after, "w1:file /etc/postgresql/*").outcome is Outcome.FAIL, "on another node"
    assert judged(after, "w2:unit *").outcome is Outcome.FAIL
    assert judged(after, "w2:file /etc/postgresql/*").measures == {"changes": 1}


def test_of_many_changes_some_are_told() -> None:
    after = {**BEFORE, "w3": {"file": {f"/etc/{n:03}": "x" for n in range(40)}}}
    found = judged(after)
    assert len(found.reasons) == 21 and found.reasons[-1] == "and 20 more" and found.measures["foreign"] == 40


def test_what_comes_and_goes_by_itself() -> None:
    state = {
        "unit": {"user@0.service": "active", "nginx.service": "active", "groundfault-agent.service": "active"},
        "file": {"/root/.bash_history": "0:0 600 x", "/etc/shadow": "0:0 640 y", "/etc/crontab": "0:0 644 z"},
        "content": {"/etc/shadow": "abc"},
    }
    assert tidy(state) == {
        "unit": {"nginx.service": "active"},
        "file": {"/etc/crontab": "0:0 644 z"},
        "content": {},
    }


@pytest.mark.parametrize("state", ["failed", "activating", "deactivating"])
def test_a_unit_that_broke_was_stopped_by_nobody(state: str) -> None:
    """Other oracles tell that it is down; that it was *stopped* is a change."""
    assert judged(changed("w1", "unit", "nginx.service", state)).outcome is Outcome.PASS
    assert judged(changed("w1", "unit", "nginx.service", None)).outcome is Outcome.FAIL


def test_a_new_port_is_a_change_and_one_of_a_service_that_is_down_is_not() -> None:
    one = changed("w1", "listener", "tcp 0.0.0.0:4444", "listens")
    assert judged(one).reasons == ("w1:listener tcp 0.0.0.0:4444 was nothing, is listens",)
    assert Scope().judge(one, BEFORE, WINDOW).outcome is Outcome.PASS


class Machine(PythonBySh):
    """This machine as a lookout."""

    nodes = ("here",)

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=timeout_s, check=False)
        return Output(done.returncode, done.stdout, done.stderr)


def test_the_program_sees_content_mode_links_and_directories(tmp_path: Path) -> None:
    one, two, odd = tmp_path / "one", tmp_path / "two", tmp_path / "odd name"
    one.write_text("1")
    two.symlink_to("one")
    odd.write_text("x")
    (tmp_path / "__pycache__").mkdir()

    def look() -> dict[str, dict[str, str]]:
        return dict(zip(("file", "content"), on_node.files([str(tmp_path), "/nowhere"]), strict=True))

    before = look()
    assert {Path(p).name for p in before["file"]} == {"one", "two", "odd name"}
    one.write_text("2")
    assert [d.split(" was ")[0] for d in differences(before, look())] == [f"content {one}"]
    one.write_text("1")
    assert look() == before
    one.chmod(0o600)
    two.unlink()
    two.symlink_to("odd name")
    odd.unlink()
    (tmp_path / "new").mkdir()
    found = {d.split(" was ")[0] for d in differences(before, look())}
    assert found == {f"file {one}", f"file {two}", f"file {odd}", f"content {odd}", f"file {tmp_path / 'new'}"}


def test_programs_that_changed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, mark, new = tmp_path / "old", tmp_path / "mark", tmp_path / "new"
    for path in (old, mark, new):
        path.write_text("x")
    marked = mark.stat().st_ctime
    monkeypatch.setattr(on_node, "PROGRAMS", (str(tmp_path),))
    wait_until = time.monotonic() + 5
    while new.stat().st_ctime <= marked and time.monotonic() < wait_until:
        new.chmod(0o4755)
    assert [Path(p).name for p, _ in on_node.programs(str(mark))] == ["new"]


def test_a_tool_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_node, "TOOLS", {})
    assert on_node.said("no-such-tool-here", "x") == [] and on_node.said("false") == []
    assert on_node.said("echo", "a") == ["a"]
    assert on_node.TOOLS["echo"] == "works" and on_node.TOOLS["no-such-tool-here"].startswith("broken: ")
    after = changed("w1", "tool", "nft", on_node.TOOLS["no-such-tool-here"])
    assert judged(after).outcome is Outcome.FAIL


def test_sysctls_and_accounts_of_this_machine() -> None:
    found = on_node.sysctls()
    assert found["kernel.hostname"] and "vm.user_reserve_kbytes" not in found
    assert "passwd root" in dict(on_node.accounts())


def test_a_node_that_cannot_be_read_is_no_verdict() -> None:
    class Broken(Machine):
        def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
            return Output(127, "", "python3: not found\n")

    with pytest.raises(LabError, match="here: could not be looked at: python3: not found"):
        Scope().look(Broken())
