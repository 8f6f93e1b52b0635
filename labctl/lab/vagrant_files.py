"""The Vagrantfile of the project: beside the packages in a checkout, inside of them where they are installed."""

from __future__ import annotations

from importlib import resources

from labctl.lab.code import checkout


def vagrantfile() -> bytes:
    """Its content."""
    root = checkout()
    if root is not None:
        return (root / "vagrant" / "Vagrantfile").read_bytes()
    return resources.files("labctl.lab").joinpath("Vagrantfile").read_bytes()
