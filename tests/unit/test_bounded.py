"""Calls that may never come back."""

from __future__ import annotations

import os
import threading
import time

import pytest

from node_agent.host.bounded import within
from node_agent.host.libc import check, libc


def test_results_and_errors_come_through() -> None:
    assert within(5, "adding", lambda: 1 + 1) == 2
    with pytest.raises(FileNotFoundError):
        within(5, "opening", lambda: os.open("/nonexistent/file", os.O_RDONLY))
    with pytest.raises(ZeroDivisionError):
        within(5, "a bug", lambda: 1 // 0)


def test_a_wait_that_can_be_interrupted_is_called_off() -> None:
    before = threading.active_count()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"pausing: no end within 0\.1 s; called off"):
        within(0.1, "pausing", lambda: check(libc().pause()))
    assert time.monotonic() - began < 10, "the pause would never end"
    assert threading.active_count() == before


def test_a_wait_that_cannot_be_interrupted_is_left_behind_and_told() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(TimeoutError, match="cannot be interrupted"):
            within(0.1, "reading", lambda: os.read(read, 1))
    finally:
        os.write(write, b"x")
