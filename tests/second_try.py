"""What a test of real kernels leaves when it fails, and what its first failure said, where it is tried again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from tests.lab import LabUnderTest, state_home

WITHIN_S = 300.0


def labs_of(values: Iterable[Any]) -> dict[str, LabUnderTest]:
    """The labs among the values of a test's fixtures, or what they have as their lab; by name."""
    near = [*values]
    labs = [*near, *(getattr(one, "lab", None) for one in near)]
    return {lab.provider.name: lab for lab in labs if isinstance(lab, LabUnderTest)}


def take_back(lab: LabUnderTest) -> str:
    """Recover all that stands in a lab, as a user does; what `labctl` said of it."""
    argv = (sys.executable, "-m", "labctl", "--lab", lab.provider.name, "recover", "--all")
    with state_home(lab.provider.directory.parents[2]):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            return f"{' '.join(argv)} took longer than {WITHIN_S:g} s"
    return f"{' '.join(argv)} ended with {done.returncode}: {done.stdout}{done.stderr}"


class SecondTry:
    """After a failure the lab is taken back to no faults; a first failure is shown though a second try passes."""

    def __init__(self) -> None:
        self.first: list[tuple[str, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and report.when == "call":
            for lab in labs_of(getattr(item, "funcargs", {}).values()).values():
                report.sections.append(("taken back", take_back(lab)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.outcome) == "rerun":
            self.first.append((report.nodeid, report.longreprtext))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.first:
            terminalreporter.section("failures of first tries")
        for test, text in self.first:
            terminalreporter.write_line(test, red=True)
            terminalreporter.write_line("\n".join(text.splitlines()[-25:]))
