"""Qdiscs and rulesets are asked for again only when the kernel says that they changed."""

from __future__ import annotations

import pytest

from node_agent.host import network
from node_agent.host.network import NetworkState

_TC, _NFT = ("tc", "qdisc", "show"), ("nft", "-s", "list", "ruleset")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    monkeypatch.setattr(network, "qdisc_mark", lambda: b"1")
    monkeypatch.setattr(network, "ruleset_mark", lambda: b"1")
    return []


def _state(asked: list[tuple[str, ...]], answer: str | None = "text") -> NetworkState:
    def query(argv: tuple[str, ...]) -> str | None:
        asked.append(argv)
        return answer

    return NetworkState(query)


def test_asked_once_as_long_as_nothing_changes(asked: list[tuple[str, ...]]) -> None:
    state = _state(asked)
    assert [state.qdiscs(), state.qdiscs(), state.ruleset(), state.ruleset()] == ["text"] * 4
    assert asked == [_TC, _NFT]


def test_asked_again_after_a_change(asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state(asked)
    state.qdiscs()
    state.ruleset()
    monkeypatch.setattr(network, "ruleset_mark", lambda: b"2")
    state.qdiscs()
    state.ruleset()
    assert asked == [_TC, _NFT, _NFT]


def test_asked_each_time_where_the_kernel_does_not_say(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "ruleset_mark", lambda: b"")
    state = _state(asked, None)
    assert (state.ruleset(), state.ruleset()) == ("", "")
    assert asked == [_NFT, _NFT]


def test_the_mark_of_this_machine_stays_the_same() -> None:
    mark = network.qdisc_mark()
    assert b"lo" in mark and network.qdisc_mark() == mark
