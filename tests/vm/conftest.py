"""Two labs side by side: which tests of real kernels share a worker, and with it a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LABS = {"kernel_node": "kernels", "booking_lab": "booking", "two_cpus": "calls"}
"""Fixtures that boot a lab beside the usual one, and what the files that name them are called together."""


class TogetherScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types for it
    """A file stays together; those that want the same lab beside the usual one do, too: each boots once."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        text = (Path(self.config.rootpath) / file).read_text()
        labs = [lab for word, lab in LABS.items() if word in text]
        return labs[0] if labs else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherScheduling:
    """How xdist deals out the tests. Its marks for groups do nothing with pytest 9.2 (seen with xdist 3.8)."""
    return TogetherScheduling(config, log)
