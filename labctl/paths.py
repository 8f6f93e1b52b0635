"""Where the control side keeps things: a cache that can be deleted any time, and state that can not.

Both follow the XDG base directory specification, so tests point them elsewhere by environment.
"""

from __future__ import annotations

import os
from pathlib import Path


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    base = Path(value) if value.startswith("/") else Path.home() / default
    return base / "groundfault"


def cache_dir() -> Path:
    """Downloads, images and wheels, keyed by content. `~/.cache/groundfault` unless XDG says otherwise."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Labs: their disks, snapshots, certificates. `~/.local/state/groundfault` unless XDG says otherwise."""
    return _xdg("XDG_STATE_HOME", ".local/state")
