"""How the commands of a page are taken from it and typed."""

from __future__ import annotations

import os
from pathlib import Path

from tests.terminal import shown, typed

PAGE = """$ cat hosts.toml
[nodes.db1]
address = "a"      # stays

[nodes.db2]
$ read -rsp "word: " WORD && export WORD    # asks
$ test -t 0 && echo "got $WORD"
"""


def test_a_block_is_files_and_commands() -> None:
    found = shown(PAGE)
    assert found.files == {"hosts.toml": '[nodes.db1]\naddress = "a"      # stays\n\n[nodes.db2]\n'}
    assert found.commands == ('read -rsp "word: " WORD && export WORD', 'test -t 0 && echo "got $WORD"')


def test_what_is_asked_is_answered_at_a_terminal(tmp_path: Path) -> None:
    status, said = typed(shown(PAGE).commands, {"word: ": "sesame"}, os.environ, tmp_path, 30.0)
    assert status == 0 and "got sesame" in said
    assert said.count("$ test -t 0") == 1


def test_the_first_command_that_fails_ends_it(tmp_path: Path) -> None:
    status, said = typed(("exit 7", "echo never-ran"), {}, os.environ, tmp_path, 30.0)
    assert status == 7 and "\nnever-ran" not in said
