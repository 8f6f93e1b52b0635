"""The lab that tests share, and: in CI a skip is a failure, unless its reason is in tests/allowed-skips.txt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.booking_lab import booking_lab  # noqa: F401  a lab of its own for problems
from tests.failures import Failures
from tests.lab import kernel_node, kernel_nodes, lab, labs_home, two_cpus  # noqa: F401  for vm and e2e: the same labs

ALLOWED = Path(__file__).with_name("allowed-skips.txt")


def _allowed() -> tuple[str, ...]:
    lines = ALLOWED.read_text().splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


class SkipsAreFailures:
    """Collects skips whose reason is not on the list."""

    def __init__(self) -> None:
        self.bad: list[str] = []
        self._allowed = _allowed()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not any(allowed in reason for allowed in self._allowed):
                self.bad.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.bad and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.bad:
            terminalreporter.write_line(f"skipped without leave: {line}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Failures(config))
    if os.environ.get("CI"):
        config.pluginmanager.register(SkipsAreFailures())
