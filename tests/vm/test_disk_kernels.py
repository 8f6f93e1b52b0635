"""Every disk fault on kernels beside Debian 13's: it bites and goes, or is refused for a reason listed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from labctl.transport.base import AgentFailedError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.catalog import catalog
from tests.lab import KernelNode, KernelNodes, kernels

pytestmark = pytest.mark.vm

VICTIM = "/srv/data/victim"
BYTES = 65536

UNSUPPORTED: Mapping[str, Mapping[str, str]] = {}
"""By kernel and fault: the capability that is missing there."""


@dataclass(frozen=True)
class Case:
    """Parameters, a command that meets the fault, and what it then says. `{victim}` and `{disk}` are filled in."""

    parameters: Mapping[str, Any]
    command: str
    says: str


_WRITE = "dd if=/dev/zero of={victim} bs=4096 count=1 conv=notrunc oflag=direct status=none 2>&1; echo over"
_READ = "dd if={victim} of=/dev/null bs=4096 count=16 iflag=direct status=none 2>&1; echo over"
_SUM = "dd if={victim} bs=64k iflag=direct status=none | cmp - /root/good 2>&1; echo over"
_FIRST = "dd if={victim} bs=4096 count=1 iflag=direct status=none | tr -d '\\0' | wc -c"

_ASTRAY = (
    "dd if=/dev/zero of={victim} bs=4096 count=16 conv=notrunc oflag=direct status=none; "
    "dd if={victim} bs=64k iflag=direct status=none | tr -d '\\0' | wc -c"
)
_FLUSH = "dd of=/dev/mapper/data count=0 conv=fsync status=none 2>&1 < /dev/null; echo over"
_CACHED = "echo 1 > /srv/data/cached; sync /srv/data/cached; dmsetup status data"
_LATE = f"a=$(date +%s%3N); {_FIRST}; b=$(date +%s%3N); [ $((b - a)) -ge 700 ] && echo late"
_HANGING = (
    f"({_READ}) > /dev/null 2>&1 < /dev/null & sleep 1; disk=$(basename $(realpath /dev/mapper/data)); "
    "awk '$1 > 0 {{print \"hanging\"}}' /sys/block/$disk/inflight"
)
_NOBODY = "setpriv --reuid 65534 --clear-groups"

CASES: Mapping[str, Case] = {
    "latent_sector_error": Case({"backend": "dm", "file": VICTIM}, _READ, "Input/output error"),
    "silent_corruption": Case({"file": VICTIM}, _SUM, "differ"),
    "write_error": Case({"file": VICTIM}, _WRITE, "Input/output error"),
    "flush_error": Case({}, _FLUSH, "Input/output error"),
    "torn_write": Case({"file": VICTIM, "accept_data_loss": True}, f"{_WRITE}; {_FIRST}", "2048"),
    "misdirected_write": Case({"file": VICTIM, "sectors": 8, "accept_data_loss": True}, _ASTRAY, "4096"),
    "lost_flush": Case({"accept_data_loss": True}, _CACHED, "writecache 0"),
    "disk_slow": Case({"read_ms": 700}, _LATE, "late"),
    "disk_hang": Case({"what": "reads"}, _HANGING, "hanging"),
    "disk_gone": Case({"backend": "dm"}, _READ, "Input/output error"),
    "disk_full": Case({}, f"{_NOBODY} fallocate -l 1M /srv/data/open/x 2>&1; echo over", "No space left"),
    "inodes_full": Case({"leave": 0}, f"{_NOBODY} touch /srv/data/open/y 2>&1; echo over", "No space left"),
    "readonly_remount": Case({}, "touch /srv/data/z 2>&1; echo over", "cannot touch"),
}  # fmt: skip


@pytest.fixture(scope="module", params=kernels("debian12", "lab"))
def kernel_node(request: pytest.FixtureRequest, kernel_nodes: KernelNodes) -> Iterator[KernelNode]:
    """What Debian 13's kernel does is measured in the tests of each fault."""
    found = kernel_nodes(request.param)
    found.lab.reset()
    yield found
    found.lab.reset()


@pytest.fixture(scope="module")
def agent(kernel_node: KernelNode) -> Iterator[AgentClient]:
    kernel_node.sh(
        f"head -c {BYTES} /dev/urandom | tr '\\0' 'a' > {VICTIM}; cp {VICTIM} /root/good; "
        "mkdir -p -m 1777 /srv/data/open; chmod 1777 /srv/data/open; sync"
    )
    with connect(kernel_node.node, kernel_node.lab.authority) as transport:
        client = AgentClient(transport)
        yield client
        client.recover(everything=True)


def test_every_disk_fault_is_tried() -> None:
    disks = {name for name, cls in catalog().items() if cls.__module__.startswith("disk_faults.")}
    assert disks == set(CASES)


@pytest.mark.parametrize("fault", CASES)
def test_it_bites_and_goes(kernel_node: KernelNode, agent: AgentClient, fault: str) -> None:
    case = CASES[fault]
    missing = UNSUPPORTED.get(kernel_node.kernel, {}).get(fault)
    if missing:
        plan = agent.plan("k-plan", fault, case.parameters)
        assert [m.capability for m in plan.missing] == [missing] and plan.missing[0].reason
        with pytest.raises(AgentFailedError):
            agent.apply(f"k-{fault.replace('_', '-')}", fault, case.parameters, 300)
        return
    kernel_node.sh(f"cp /root/good {VICTIM}; sync {VICTIM}")
    before = kernel_node.sh("dmsetup table; losetup --list --noheadings")
    view = agent.apply(f"k-{fault.replace('_', '-')}", fault, {**case.parameters, "seed": 5}, 300)
    try:
        said = kernel_node.sh(case.command.format(victim=VICTIM), check=False)
        assert case.says in said, said
    finally:
        (ended,) = agent.recover((view.id,)).injections
    assert (ended.state, ended.residue) == ("recovered", ()), ended
    assert kernel_node.sh("dmsetup table; losetup --list --noheadings") == before
    assert agent.residue() == ()
    kernel_node.sh("touch /srv/data/well && sync -f /srv/data && rm /srv/data/well")
