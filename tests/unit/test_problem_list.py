"""The catalogue of problems: what is found, what is refused, and when it is another revision."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import UsageError
from labctl.run import catalogue as the
from labctl.run.catalogue import Catalogue, load

TEXT = """
from tests.unit.run_world import problem
PROBLEM = problem(name={name!r})
"""
PACKAGE = "toy_problems"


class Pool:
    """A package of problems that can be written to."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.write("disks/__init__.py", "")
        self.write("workloads/__init__.py", "")
        self.write("__init__.py", "")

    def write(self, path: str, text: str) -> None:
        target = self.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def load(self) -> Catalogue:
        for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        return load(PACKAGE)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Pool(tmp_path / PACKAGE)
    for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_problems_are_found_and_services_are_none(pool: Pool) -> None:
    pool.write("disks/reads_fail.py", TEXT.format(name="reads_fail"))
    pool.write("disks/shared.py", "SOCKET = 1")
    pool.write("workloads/shop.py", TEXT.format(name="shop"))
    found = pool.load()
    assert list(found.problems) == ["reads_fail"] and str(found).endswith("(1 problems)")
    assert found.find("reads_fail").title == "reads fail"
    with pytest.raises(UsageError, match="no problem called 'reads_fails'") as error:
        found.find("reads_fails")
    assert "reads_fail" in error.value.hint


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("disks/other.py", TEXT.format(name="reads_fail"), "name both the same"),
        ("disks/none.py", "PROBLEM = 3", "is no Problem"),
    ],
)
def test_what_is_refused(pool: Pool, path: str, text: str, reason: str) -> None:
    pool.write(path, text)
    with pytest.raises(ValueError, match=reason):
        pool.load()


def test_two_of_one_name(pool: Pool) -> None:
    pool.write("more/__init__.py", "")
    for family in ("disks", "more"):
        pool.write(f"{family}/reads_fail.py", TEXT.format(name="reads_fail"))
    with pytest.raises(ValueError, match="two problems are called reads_fail"):
        pool.load()


def test_each_change_of_a_file_is_another_revision_of_whom_it_concerns(pool: Pool) -> None:
    for name in ("reads_fail", "writes_fail"):
        pool.write(f"disks/{name}.py", TEXT.format(name=name))

    def revisions() -> tuple[str, str, str]:
        found = pool.load()
        return found.revision, found.revision_of("reads_fail"), found.revision_of("writes_fail")

    first = revisions()
    assert revisions() == first
    pool.write("disks/reads_fail.py", TEXT.format(name="reads_fail") + "# more")
    second = revisions()
    assert second[0] != first[0] and second[1] != first[1] and second[2] == first[2]
    pool.write("workloads/shop.py", "x = 1")
    third = revisions()
    assert not set(third) & set(second), "the service is everybody's"


def test_the_pool_of_this_labctl() -> None:
    found = the.catalogue()
    assert set(found.problems) == set(found.modules)
    assert all(len(found.revision_of(name)) == 12 for name in found.problems)
