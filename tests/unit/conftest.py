"""Fixtures for the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent import catalog
from tests.unit import toys
from tests.unit.cli_world import ToyLab, World


@pytest.fixture
def toy_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The catalogue has the toys and nothing else."""
    monkeypatch.setattr(catalog, "fault_modules", lambda: iter([toys]))
    catalog.catalog.cache_clear()
    yield
    catalog.catalog.cache_clear()


@pytest.fixture
def empty_world(capsys: pytest.CaptureFixture[str], tmp_path: Path, toy_faults: None,
                monkeypatch: pytest.MonkeyPatch) -> World:  # fmt: skip
    """No lab yet."""
    monkeypatch.delenv("GROUNDFAULT_LAB", raising=False)
    return World(capsys, tmp_path)


@pytest.fixture
def world(empty_world: World) -> World:
    """A lab of three nodes, up."""
    empty_world.labs["default"] = ToyLab()
    return empty_world
