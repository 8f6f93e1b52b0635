"""Programs that run as helpers of an injection: scripts of their own, with nothing but the standard library."""

from __future__ import annotations

import sys
from pathlib import Path

READY_S = 60.0
"""Starting Python takes 3 s on an emulated node that has a CPU of its own, and more where it has not."""


def command(name: str) -> tuple[str, ...]:
    """The command line that runs one of them."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name(f"{name}.py")))
