"""What a solver can say, and how little it can do by saying much."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.run.solvers.access import CLOSE, PREPARE, Access
from labctl.run.solvers.desk import LONGEST_REQUEST, MOST_REQUESTS, MOST_SUBMISSIONS, Counter, Desk
from labctl.run.solvers.directory import Directory, make_directory

from .run_world import BAD, WORDS, problem
from .solving import Nodes, Notebook, setting

RIGHT = json.dumps({"triples": [BAD.model_dump()]})


def hands(text: str) -> str:
    if text == "break":
        raise LabError("the disk does not come out", "pull harder")
    return f"did {text}"


@pytest.fixture
def notes() -> Notebook:
    return Notebook()


@pytest.fixture
def desk(notes: Notebook) -> Desk:
    return Desk(WORDS, {"hardware": hands}, notes)


def test_the_last_diagnosis_counts_and_a_bad_one_does_not(desk: Desk, notes: Notebook) -> None:
    assert desk.hear({"kind": "submit", "text": '{"healthy": true}'})["ok"]
    assert desk.hear({"kind": "submit", "text": RIGHT}) == {
        "ok": True, "text": "submitted; you may do so 18 times more, and the last one counts"
    }  # fmt: skip
    refused = desk.hear({"kind": "submit", "text": RIGHT.replace("disk of w2", "moon")})
    assert not refused["ok"] and "'moon' is no word of this problem" in str(refused["text"])
    assert desk.diagnosis is not None and desk.diagnosis.triples == (BAD,)
    assert [data["number"] for data in notes.of("submitted")] == [1, 2]


def test_a_declaration_is_final(desk: Desk) -> None:
    assert not desk.declared
    assert desk.hear({"kind": "declare"})["ok"] and desk.declared
    for kind in ("submit", "declare", "hardware"):
        assert not desk.hear({"kind": kind, "text": RIGHT})["ok"]
    assert desk.diagnosis is None


def test_hands(desk: Desk, notes: Notebook) -> None:
    assert desk.hear({"kind": "hardware", "text": "status w2"}) == {"ok": True, "text": "did status w2"}
    broken = desk.hear({"kind": "hardware", "text": "break"})
    assert broken == {"ok": False, "text": "the disk does not come out (pull harder)"}
    assert notes.of("asked") == [{"tool": "hardware", "text": "status w2"}, {"tool": "hardware", "text": "break"}]
    desk.close()
    assert not desk.hear({"kind": "hardware", "text": "status w2"})["ok"]


@pytest.mark.parametrize("said", [{}, {"kind": 3}, {"kind": "submit", "text": 3}, {"kind": "recover"}])
def test_nonsense(said: dict[str, object], desk: Desk) -> None:
    assert not desk.hear(said)["ok"]


def test_a_flood_of_submissions_is_refused(desk: Desk, notes: Notebook) -> None:
    answers = [desk.hear({"kind": "submit", "text": RIGHT})["ok"] for _ in range(MOST_REQUESTS + 10)]
    assert answers.count(True) == MOST_SUBMISSIONS == len(notes.events)
    assert desk.hear({"kind": "declare"})["ok"], "whoever talks too much may still be done"


@pytest.fixture
def counter(desk: Desk, tmp_path: Path) -> Iterator[Path]:
    serving = Counter(tmp_path / "desk", desk)
    yield tmp_path / "desk"
    serving.end()


def say(path: Path, content: bytes) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as desk:
        desk.settimeout(20)
        desk.connect(str(path))
        desk.sendall(content)
        with desk.makefile("rb") as answers:
            found: dict[str, object] = json.loads(answers.readline())
            return found


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"what?\n", "not JSON"),
        (b"[1]\n", "no JSON object"),
        (b"\xff\xfe\n", "not JSON"),
        (b'"' + b"x" * LONGEST_REQUEST + b'"\n', f"more than {LONGEST_REQUEST} bytes"),
    ],
)
def test_what_comes_over_the_socket_is_looked_at(content: bytes, text: str, counter: Path) -> None:
    assert say(counter, content) == {"ok": False, "text": text}


def test_many_at_once_are_served_in_turn(counter: Path, notes: Notebook) -> None:
    silent = []
    for _ in range(4):  # these hold their places, and say nothing
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].connect(str(counter))
    answers: list[object] = []

    def ask() -> None:
        answers.append(say(counter, json.dumps({"kind": "submit", "text": RIGHT}).encode() + b"\n")["ok"])

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for one in silent:
        one.close()
    assert answers.count(True) == MOST_SUBMISSIONS and len(answers) == 30


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = make_directory(
        problem(statement="It is slow."),
        setting(problem(), tmp_path, Nodes(), Notebook()).nodes(),
        open_shell=False,
    )
    yield made
    made.remove()
    made.remove()


def run(directory: Directory, *argv: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=directory.path, input=given, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_directory_has_what_a_solver_needs_and_nothing_else(directory: Directory) -> None:
    assert {p.name for p in directory.path.iterdir()} == {
        "STATEMENT.md", "vocabulary.json", "ssh_config", "known_hosts", "key", "submit", "declare", "hardware"
    }  # fmt: skip
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory.path / "key").stat().st_mode) == 0o600
    statement = (directory.path / "STATEMENT.md").read_text()
    assert "# reads fail" in statement and "It is slow." in statement and "10 minutes" in statement
    everything = "".join(p.read_text() for p in directory.path.iterdir())
    assert "sectors of w2" not in everything, "the root cause is nobody's business"
    checked = run(directory, "ssh", "-G", "-F", "ssh_config", "w2")
    assert checked.returncode == 0
    assert {"user oncall", "port 2202", f"identityfile {directory.path}/key"} <= {*checked.stdout.splitlines()}
    public = run(directory, "ssh-keygen", "-y", "-f", "key").stdout.split()
    assert public[:2] == directory.public_key.split()[:2]


def test_a_confined_solver_has_no_way_in(tmp_path: Path) -> None:
    confined = problem(surface="confined")
    made = make_directory(confined, setting(confined, tmp_path, Nodes(), Notebook()).nodes(), open_shell=False)
    names = {p.name for p in made.path.iterdir()}
    made.remove()
    assert "node" in names and not names & {"key", "ssh_config", "known_hosts"}


def test_the_commands(directory: Directory, desk: Desk) -> None:
    serving = Counter(directory.socket, desk)
    (directory.path / "d.json").write_text(RIGHT)
    assert run(directory, "./submit", "d.json").returncode == 0
    assert run(directory, "./submit", given='{"healthy": true}').returncode == 0
    assert desk.diagnosis is not None and desk.diagnosis.healthy
    bad = run(directory, "./submit", given="hello")
    assert (bad.returncode, bad.stdout) == (1, "") and "not JSON" in bad.stderr
    assert run(directory, "./hardware", "replace-disk", "w2").stdout == "did replace-disk w2\n"
    assert "hand in a diagnosis" in run(directory, "./submit", "--help").stdout
    assert run(directory, sys.executable, "declare").returncode == 0 and desk.declared
    serving.end()
    over = run(directory, "./declare")
    assert over.returncode == 2 and "nobody takes this any more" in over.stderr


def test_access_opens_and_closes_all_nodes() -> None:
    nodes = Nodes()
    access = Access(nodes, root=False)
    access.prepare()
    assert sorted(nodes.ran) == [(node, PREPARE) for node in ("w1", "w2")]
    nodes.ran.clear()
    access.open("ssh-ed25519 AAAA oncall")
    assert len(nodes.ran) == 2 and all("'ssh-ed25519 AAAA oncall'" in script for _, script in nodes.ran)
    nodes.lost = "w1"
    assert access.close() == ("w1 does not answer",)
    assert nodes.ran[-1] == ("w2", CLOSE)


def test_a_node_that_does_not_answer_is_opened_once_it_has_booted() -> None:
    nodes = Nodes()
    access = Access(nodes, root=False)
    access.reopen("w1")
    assert not nodes.ran, "nobody has a key yet"
    nodes.lost = "w1"
    access.open("ssh-ed25519 AAAA oncall")
    assert [node for node, _ in nodes.ran] == ["w2"]
    nodes.lost = ""
    access.reopen("w1")
    assert nodes.ran[-1][0] == "w1" and "'ssh-ed25519 AAAA oncall'" in nodes.ran[-1][1]
    access.close()
    nodes.ran.clear()
    access.reopen("w1")
    assert not nodes.ran, "the solver's time is over"


def closing(tmp_path: Path, table: str) -> list[str]:
    """What the closing script would end, of a table of processes."""
    (tmp_path / "ps").write_text(f"#!/bin/sh\ncat <<'E'\n{table}E\n")
    (tmp_path / "id").write_text("#!/bin/sh\necho 1001\n")
    for name in ("ps", "id"):
        (tmp_path / name).chmod(0o755)
    only = CLOSE[: CLOSE.index("tries=0")] + "mine\n"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ("sh", "-c", only.replace("rm -f", "true")), env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_closing_ends_what_the_account_started_and_no_more(tmp_path: Path) -> None:
    ssh, unit = "0::/system.slice/ssh.service", "0::/system.slice/nginx.service"
    rows: list[tuple[int, int, int, str, str]] = [
        (1, 0, 0, "0::/init.scope", "systemd"),
        (300, 1, 0, ssh, "sshd"),
        (310, 300, 0, ssh, "sshd-session"),  # a login of the lab's
        (311, 310, 0, ssh, "sh"),
        (320, 300, 0, ssh, "sshd-session"),
        (321, 320, 1001, ssh, "sshd-session"),
        (322, 321, 1001, ssh, "bash"),
        (323, 322, 0, ssh, "sudo"),
        (324, 323, 0, ssh, "tcpdump"),
        (330, 1, 0, ssh, "dd"),  # nohup, with nobody above it
        (340, 1, 0, unit, "nginx"),  # a unit it restarted
        (341, 1, 1001, unit, "nginx"),
    ]
    table = "".join(f"{pid} {up} {uid} {group} {name}\n" for pid, up, uid, group, name in rows)
    assert closing(tmp_path, table) == ["321", "322", "323", "324", "330", "341"]
