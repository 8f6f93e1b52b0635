"""The verbs of a confined solver: what they run, and what they refuse."""

from __future__ import annotations

import shlex

import pytest

from labctl.errors import UsageError
from labctl.lab.remote import Output
from labctl.run.confined import LONGEST, VERBS, NodeTool, read

from .solving import Nodes


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        ("w1 units", VERBS["units"].command),
        ("w2 status nginx.service", (*VERBS["status"].command, "nginx.service")),
        ("w2 restart postgresql@17-main.service", ("systemctl", "restart", "postgresql@17-main.service")),
        ("w1 sql SELECT 1; SELECT 2", (*VERBS["sql"].command, "SELECT 1; SELECT 2")),
    ],
)
def test_words_become_one_command(words: str, argv: tuple[str, ...]) -> None:
    assert read(words.split(maxsplit=2), ("w1", "w2")) == (words.split(maxsplit=1)[0], argv)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("w9 units", "there is no 'w9'"),
        ("w1", "there is no verb ''"),
        ("w1 reboot", "there is no verb 'reboot'"),
        ("w1 units nginx", "units takes nothing more"),
        ("w1 restart", "restart takes unit"),
        ("w1 restart nginx; reboot", "is no unit of the service"),
        ("w1 restart --now", "is no unit of the service"),
        ("w1 stop groundfault-agent.service", "is no unit of the service"),
        ("w1 stop ssh.service", "is no unit of the service"),
        ("w1 logs systemd-journald", "is no unit of the service"),
    ],
)
def test_what_is_refused(words: str, reason: str) -> None:
    nodes = Nodes()
    with pytest.raises(UsageError, match=reason):
        NodeTool(nodes)(words)
    assert nodes.ran == []


def test_answers_are_bounded_and_leave_the_lab_out() -> None:
    nodes = Nodes()
    nodes.sh = lambda node, script, *, timeout_s=60.0: Output(  # type: ignore[method-assign]
        0, "groundfault-agent.service loaded\nnginx.service loaded\n" + "x" * LONGEST, ""
    )
    said = NodeTool(nodes)("w1 units")
    assert len(said) == LONGEST and "groundfault" not in said
    assert "NODE restart UNIT" in NodeTool(Nodes())("")


def test_words_never_reach_a_shell_as_more_than_words() -> None:
    nodes = Nodes()
    NodeTool(nodes)("w1 sql SELECT 'a'; $(reboot) `reboot`")
    (_, script) = nodes.ran[0]
    assert shlex.split(script)[-2] == "SELECT 'a'; $(reboot) `reboot`"
