"""The Vagrantfile of the project: beside the packages in a checkout, inside of them where they are installed."""

from __future__ import annotations

from pathlib import Path

import labctl

_PLACES = ("../vagrant/Vagrantfile", "lab/Vagrantfile")


def vagrantfile() -> bytes:
    """Its content."""
    base = Path(labctl.__file__).parent
    place = next(path for path in (base / place for place in _PLACES) if path.is_file())
    return place.read_bytes()
