"""A test that fails: what is shown at once, and what is taken back before the next one; and its second try."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.failures import labs_of
from tests.lab import LabUnderTest

HERE = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
import pytest
from tests import failures
from tests.lab import LabUnderTest

class Provider:
    name, directory = "somelab", Path("/a/groundfault/labs/somelab")

def take_back(lab):
    with Path(__file__).with_name("taken").open("a") as file:
        file.write(lab.provider.name + "\\n")
    return "taken"

failures.take_back = take_back

def pytest_configure(config):
    config.pluginmanager.register(failures.Failures(config))

@pytest.fixture(scope="module")
def lab():
    return LabUnderTest(Provider(), None, None)
"""
TESTS = """
from pathlib import Path

def test_second_time_lucky(lab):
    here = Path(__file__).with_name("tried")
    before = here.exists()
    here.touch()
    assert before, "the first time it stumbles"

def test_well(lab):
    pass
"""
NEVER = """
def test_never():
    assert False, "no lab"
"""


def _lab(name: str) -> LabUnderTest:
    return LabUnderTest(cast(Any, SimpleNamespace(name=name)), cast(Any, None), cast(Any, None))


def test_labs_are_found_in_fixtures_and_one_step_below() -> None:
    one, other = _lab("one"), _lab("other")
    assert labs_of([one, SimpleNamespace(lab=one), SimpleNamespace(lab=other), SimpleNamespace(lab="x"), 3]) == {
        "one": one, "other": other}  # fmt: skip


def tried(place: Path, *tests: str) -> tuple[int, str]:
    """Status and output of tests that are run as those of nodes are."""
    (place / "conftest.py").write_text(CONFTEST)
    (place / "pytest.ini").write_text("[pytest]\n")
    (place / "test_it.py").write_text("".join(tests))
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": "", "PYTHON": sys.executable}
    words = (str(HERE / "scripts" / "test-nodes"), f"--rootdir={place}", "-c", f"{place}/pytest.ini", str(place))
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_what_fails_is_told_at_once_and_taken_back_and_tried_again_by_itself(tmp_path: Path) -> None:
    status, said = tried(tmp_path, TESTS)
    assert status == 0 and "1 failed, 1 passed" in said, said
    first, _, again = said.partition("what failed is tried once more, alone")
    told = first.partition("= FAILURES =")[0]
    assert told.count("AssertionError: the first time it stumbles") == 1, "told at once"
    assert told.count("failed: test_it.py::test_second_time_lucky (call)") == 1
    assert "1 passed" in again and "xdist" in first and "2 workers" not in again
    assert (tmp_path / "taken").read_text() == "somelab\n"


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    status, said = tried(tmp_path, TESTS, NEVER)
    assert status == 1 and "2 failed, 1 passed" in said and "1 failed, 1 passed" in said, said
    assert (tmp_path / "taken").read_text() == "somelab\n", "not for a test without a lab"


def test_tests_that_cannot_be_read_have_failed(tmp_path: Path) -> None:
    status, said = tried(tmp_path, "import nothing_of_the_kind\n")
    assert status != 0 and "No module named 'nothing_of_the_kind'" in said
