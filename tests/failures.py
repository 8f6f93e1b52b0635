"""What a test of real kernels leaves when it fails is taken back, and what it said is told at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from tests.lab import LabUnderTest, state_home

WITHIN_S = 300.0
LINES = 25
"""How much of a failure is told while the tests go on: its end."""


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


class Failures:
    """After a failure the lab is taken back to no faults; each failure is told at once, not only at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

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
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or hasattr(self._config, "workerinput") or not report.failed:
            return
        terminal.ensure_newline()
        terminal.write_line(f"failed: {report.nodeid} ({report.when})", red=True)
        terminal.write_line("\n".join(report.longreprtext.splitlines()[-LINES:]))
