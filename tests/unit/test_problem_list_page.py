"""The page on adding a problem: its example is a problem."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from labctl.run.catalogue import catalogue, load
from labctl.run.checking import papers
from labctl.run.problem import Planted

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-problem.md"


def test_the_example_is_found_and_its_papers_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    family = tmp_path / "problems_of_the_page" / "disks"
    family.mkdir(parents=True)
    for init in (family, family.parent):
        (init / "__init__.py").touch()
    (family / "reports_are_old.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = load("problems_of_the_page").find("reports_are_old")
    assert papers(found) == ("yes", "")
    assert found.name not in catalogue().problems, "the page has one of its own"


def test_the_page_knows_the_fields_and_claims() -> None:
    text = PAGE.read_text()
    for name in ("finds", "first", "then", "shows", "bites_within_s", "ends_after_s", "may_stay"):
        assert name in Planted.model_fields and f"`{name}`" in text


@pytest.mark.parametrize("name", sorted(catalogue().problems))
def test_papers_of_each_problem(name: str) -> None:
    assert papers(catalogue().find(name)) == ("yes", "")
