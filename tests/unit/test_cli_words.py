"""Durations, parameters and names: what a user types, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.cli.inject import ID_ALPHABET, new_injection_id
from labctl.cli.parameters import example_lines, given_parameters, parameters_of
from labctl.lab.model import Node
from labctl.lab.openssh import ssh_argv
from labctl.nearest import nearest
from labctl.report.duration import format_duration, parse_duration
from tests.unit.toys import ToyDelay, ToyError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("24h", 86400), ("0.5s", 0.5), (" 2M ", 120), ("1h1m1s", 3661)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a duration"),
        ("never", "ends by itself"),
        ("FOREVER", "ends by itself"),
        ("10", "no unit"),
        ("0s", "out of range"),
        ("24h1s", "out of range"),
        ("-5m", "not a duration"),
        ("5m3h", "not a duration"),
        ("5 m", "not a duration"),
        ("1d", "not a duration"),
        ("nan", "not a duration"),
    ],
)
def test_a_bad_duration_says_why_and_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_duration(text)
    assert "at most 24h" in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (9.84, "9.8s"), (59.6, "1m"), (90, "1m30s"), (3600, "1h"), (5400, "1h30m"), (-90, "-1m30s")],
)
def test_a_duration_is_told(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_ids_are_forty_random_bits_in_lower_case() -> None:
    ids = {new_injection_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(len(one) == 8 and set(one) <= set(ID_ALPHABET) for one in ids)


def test_parameters_are_read_from_the_model() -> None:
    found = {p.name: p for p in parameters_of(ToyError)}
    assert next(iter(found)) == "file"
    assert list(found)[-1] == "seed"
    assert found["file"].required
    assert (found["sectors"].kind, found["sectors"].range()) == ("integer", ">= 1 and <= 64")
    assert found["loss_percent"].range() == "> 0 and <= 100"
    assert found["loss_percent"].shown_default() == "5"
    assert found["mode"].choices == ("read", "write")
    assert found["when"].shown_default() == "always"
    assert (found["ports"].many, found["ports"].kind) == (True, "integer")
    assert found["permanent"].kind == "boolean"
    assert (found["seed"].shown_default(), found["seed"].range()) == ("random", ">= 0")
    assert found["loss_percent"].option == "--loss-percent"


def test_only_what_was_given_reaches_the_model() -> None:
    options = {"file": "/a", "sectors": None, "ports": (), "nodes": ("w1",), "permanent": False}
    assert given_parameters(options, parameters_of(ToyError)) == {"file": "/a", "permanent": False}


def test_examples_are_command_lines() -> None:
    assert example_lines(ToyError) == ["toy_error --node NODE --file /srv/data/a"]
    assert example_lines(ToyDelay) == ["toy_delay --node NODE"]


def test_the_nearest_names_come_first() -> None:
    assert nearest("injekt", ["inject", "injections", "up"], "commands") == "did you mean inject or injections?"
    assert nearest("zzz", ["inject", "up"], "commands") == "commands: inject, up"
    assert nearest("zzz", [], "labs") == "there are no labs"
    assert nearest("zzz", ["a"], "labs", "make one") == "make one"


NODE = Node(name="w1", address="127.0.0.1", ssh_port=2201, ssh_key=Path("/k"), known_hosts=Path("/a b/hosts"))


def test_ssh_words_arrive_as_they_were_typed() -> None:
    argv = ssh_argv(NODE, ("sh", "-c", "echo $HOME; ls 'a b'"))
    assert argv[-1] == """sh -c 'echo $HOME; ls '"'"'a b'"'"''"""
    assert argv[-2] == "127.0.0.1"
    assert argv[-3] == "--"


def test_ssh_checks_the_lab_s_own_host_keys_and_nothing_of_the_user_s() -> None:
    line = " ".join(ssh_argv(NODE))
    assert '-o UserKnownHostsFile="/a b/hosts" -o StrictHostKeyChecking=yes' in line
    assert "-F none" in line
    assert "-i /k -o IdentitiesOnly=yes" in line
    assert line.endswith("-- 127.0.0.1")
    theirs = " ".join(ssh_argv(Node(name="db1", address="db1.example", ssh_user="ops")))
    assert "-F none" not in theirs
    assert "KnownHosts" not in theirs
    assert "-l ops" in theirs
