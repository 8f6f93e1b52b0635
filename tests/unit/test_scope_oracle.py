"""The oracle of scope: what it accepts, what it must not, and what its script says of a real machine."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.lab.remote import Output
from labctl.oracles.scope import Scope, differences, parse
from labctl.run.oracle import Window
from labctl.run.verdict import Outcome

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
    assert len(found.reasons) == 13 and found.reasons[-1] == "and 28 more" and found.measures["foreign"] == 40


def test_what_comes_and_goes_by_itself() -> None:
    text = "## unit\nuser@0.service\tactive\nnginx.service\tactive\n## file\n/root/.bash_history\troot:root 600 \n"
    assert parse(text) == {"unit": {"nginx.service": "active"}, "file": {}}


class Machine:
    """This machine as a lookout."""

    nodes = ("here",)

    def __init__(self, root: Path) -> None:
        self.root = root

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=timeout_s, check=False)
        return Output(done.returncode, done.stdout, done.stderr)


def test_the_files_part_of_the_script_sees_content_mode_and_links(tmp_path: Path) -> None:
    """The rest of it needs systemd, and is tried on nodes."""
    script = resources.files("labctl.oracles").joinpath("scope.sh").read_text()
    part = script[script.index('echo "## file"') : script.index('echo "## account"')]
    one, two, odd = tmp_path / "one", tmp_path / "two", tmp_path / "odd name"
    one.write_text("1")
    two.symlink_to("one")
    odd.write_text("x")

    def look() -> dict[str, dict[str, str]]:
        done = Machine(tmp_path).sh("here", f"set -eu; set -- {tmp_path} /nowhere\n{part}")
        assert (done.status, done.stderr) == (0, "")
        return parse(done.stdout)

    before = look()
    assert {Path(p).name for p in before["file"]} == {"one", "two", "odd name"}
    one.write_text("2")
    assert [d.split(" was ")[0] for d in differences(before, look())] == [f"content {one}"]
    one.write_text("1")
    one.chmod(0o600)
    two.unlink()
    two.symlink_to("odd name")
    odd.unlink()
    found = {d.split(" was ")[0] for d in differences(before, look())}
    assert found == {f"file {one}", f"file {two}", f"file {odd}", f"content {odd}"}


def test_a_node_that_cannot_be_read_is_no_verdict() -> None:
    class Broken(Machine):
        def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
            return Output(127, "", "dpkg-query: not found\n")

    with pytest.raises(LabError, match="here: its state could not be read: dpkg-query: not found"):
        Scope().look(Broken(Path("/")))
