"""A test that fails once and then passes: what is shown, and what is taken back in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.lab import LabUnderTest
from tests.second_try import labs_of

HERE = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
import pytest
from tests import second_try
from tests.lab import LabUnderTest

class Provider:
    name, directory = "somelab", Path("/a/groundfault/labs/somelab")

second_try.take_back = lambda lab: Path("taken").open("a").write(lab.provider.name + "\\n")

def pytest_configure(config):
    config.pluginmanager.register(second_try.SecondTry(config))

@pytest.fixture(scope="module")
def lab():
    return LabUnderTest(Provider(), None, None)
"""
TESTS = """
tries = []

def test_second_time_lucky(lab):
    tries.append(1)
    assert len(tries) == 2, "the first time it stumbles"

def test_well(lab):
    pass

def test_never():
    assert False, "no lab"
"""


def _lab(name: str) -> LabUnderTest:
    return LabUnderTest(cast(Any, SimpleNamespace(name=name)), cast(Any, None), cast(Any, None))


def test_labs_are_found_in_fixtures_and_one_step_below() -> None:
    one, other = _lab("one"), _lab("other")
    assert labs_of([one, SimpleNamespace(lab=one), SimpleNamespace(lab=other), SimpleNamespace(lab="x"), 3]) == {
        "one": one, "other": other}  # fmt: skip


def test_the_first_failure_is_shown_and_faults_are_taken_back_before_the_second_try(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": ""}
    words = (sys.executable, "-m", "pytest", "--reruns", "2", "-p", "no:xdist", "-p", "no:cacheprovider")
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "1 failed, 2 passed, 3 rerun" in done.stdout, done.stdout + done.stderr
    told = done.stdout.partition("= FAILURES =")[0]
    assert told.count("AssertionError: the first time it stumbles") == 1, "told at once"
    assert told.count("failed, is tried again: test_it.py::test_second_time_lucky (call)") == 1
    assert told.count("failed, is tried again: test_it.py::test_never") == 2
    assert told.count("failed: test_it.py::test_never") == 1
    assert (tmp_path / "taken").read_text() == "somelab\n", "once, and not for a test without a lab"
