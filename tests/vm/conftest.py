"""Two labs side by side: which tests of real kernels share a worker, and with it a lab."""

from __future__ import annotations

import pytest

_KERNELS = {"kernel_nodes", "kernel_node"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file stays together; those that want nodes with other kernels stay together, too: these boot once."""
    kernels = {item.path for item in items if _KERNELS & set(getattr(item, "fixturenames", ()))}
    for item in items:
        group = "kernels" if item.path in kernels else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
