"""A rule holds in all control groups below its scope, made before it or after, and nowhere when it is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab import KernelNode

pytestmark = pytest.mark.vm

DRIVER = Path(__file__).with_name("cgroup_driver.py")


def test_control_groups_inside_a_scope(kernel_node: KernelNode) -> None:
    kernel_node.sh(f"cat > /run/{DRIVER.name} <<'END'\n{DRIVER.read_text()}\nEND")
    assert json.loads(kernel_node.sh(f"/usr/bin/python3 /run/{DRIVER.name}")) == {
        "was there before the rule": {
            "a.service": 10,
            "a.service/sub": 10,
            "a.service/sub/deep": 10,
            "b.service": 0,
        },
        "cgroups": 3,
        "made below it": 10,
        "cgroups when it is gone": 0,
        "made again": 10,
        "awaited in a scope": 10,
        "cgroups of the scope": 4,
        "after the rules": 0,
        "left in the map": 0,
    }
