"""The oracles that every problem of the workload `booking` starts from."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.oracles.clients import Clients, Objective, Objectives
from labctl.oracles.clocks import Clocks
from labctl.oracles.database_scope import DatabaseScope
from labctl.oracles.disks import Disks
from labctl.oracles.ledger import Ledger
from labctl.oracles.network import Network
from labctl.oracles.pages import Pages
from labctl.oracles.replication import Replication
from labctl.oracles.resources import Resources
from labctl.oracles.scope import TREES, Scope
from labctl.oracles.stores import Stores, StoreScope
from labctl.oracles.units import Units
from labctl.run.oracle import Oracle

NodeUnits = tuple[tuple[str, str], ...]

UNITS: NodeUnits = (
    ("w1", "nginx.service"), ("w1", "booking-api.service"), ("w1", "booking-worker.service"),
    ("w1", "valkey-server.service"), ("w1", "etcd.service"), ("w1", "dnsmasq.service"),
    ("w2", "postgresql@17-main.service"), ("w2", "etcd.service"),
    ("w3", "postgresql@17-main.service"), ("w3", "booking-api.service"), ("w3", "booking-worker.service"),
    ("w3", "etcd.service"),
    *((node, f"{unit}.service") for node in ("w1", "w2", "w3") for unit in ("prometheus-node-exporter", "cron")),
)  # fmt: skip
"""What runs where, the monitoring too."""

ADDRESSES: Mapping[str, str] = {"w1": "10.77.0.1", "w2": "10.77.0.2", "w3": "10.77.0.3"}
NAMES: Mapping[str, str] = {
    "db.booking": "10.77.0.2", "cache.booking": "10.77.0.1",
    "api1.booking": "10.77.0.1", "api3.booking": "10.77.0.3",
}  # fmt: skip
CONNECTS = (
    ("w1", "10.77.0.2", 5432), ("w3", "10.77.0.2", 5432), ("w3", "10.77.0.1", 6379), ("w1", "10.77.0.3", 8080),
    *((node, address, port) for node in ADDRESSES for other, address in ADDRESSES.items() if other != node
      for port in (2379, 2380)),
)  # fmt: skip
"""From which node to which port connections are opened when the service does its work."""

OBJECTIVES = Objectives(
    operations={
        name: Objective(success=0.98, p95_s=late)
        for name, late in (("session", 1.5), ("search", 1.5), ("book", 2.5), ("read", 2.0))
    },
    slice_s=15,
    goodput_per_s=1.5,
    enough=4,
)
"""What clients are promised on emulated machines."""


def standard(
    permitted: tuple[str, ...] = (),
    *,
    objectives: Objectives = OBJECTIVES,
    without: tuple[str, ...] = (),
    lost_units: NodeUnits = (),
    swapped: bool = False,
    standby: bool = True,
    names: Mapping[str, str] = NAMES,
    watched: tuple[str, ...] = (),
    leave_out: tuple[str, ...] = (),
) -> tuple[Oracle, ...]:
    """The set that a problem starts from. Each parameter relaxes it, for what a right repair of that problem does.

    `permitted`: changes that :class:`Scope` and :class:`DatabaseScope` let pass, globs of `node:category item`,
    such as `w2:file /etc/postgresql/*`, `w2:setting work_mem`, `db:slot *`. `without`: nodes that are lost for
    good, or drained: nothing of them is looked at. `lost_units`: units (node, unit) that a repair may stop.
    `swapped`: it may promote the standby. `standby`: whether there has to be one in the end. `names`: what names
    stand for in the end. `watched`: trees beside the usual ones whose files count. `leave_out`: oracles, by name,
    that the problem brings itself or has no use for.
    """
    units = tuple((n, u) for n, u in UNITS if n not in without and (n, u) not in lost_units)
    members = tuple(n for n in ADDRESSES if n not in without and (n, "etcd.service") not in lost_units)
    cache = "" if "w1" in without else "w1"
    servers = tuple(n for n in ("w2", "w3") if n not in without)
    addresses = {n: a for n, a in ADDRESSES.items() if n not in without}
    connects = tuple(c for c in CONNECTS if c[0] in addresses and c[1] in addresses.values())
    if swapped:  # the names lead to the database wherever it is, and clients prove that
        names = {name: address for name, address in names.items() if name != "db.booking"}
    every: tuple[Oracle, ...] = (
        Clients(objectives=objectives),
        Ledger(servers=servers, sink=cache),
        *((Replication(swapped=swapped),) if standby and len(servers) == 2 else ()),
        Units(units=units, without=without),
        *(Disks(node=node) for node in servers),
        Stores(members=members, cache=cache),
        Pages(servers=servers),
        Network(addresses=addresses, names=names, connects=connects, without=without),
        Clocks(without=without),
        Resources(units=units, without=without),
        Scope(permitted=permitted, without=without, watched=(*TREES, *watched)),
        DatabaseScope(permitted=permitted, servers=servers),
        *((StoreScope(permitted=permitted, cache=cache),) if cache else ()),
    )
    return tuple(oracle for oracle in every if oracle.name not in leave_out)


def restart_script(*units: str) -> str:
    """A challenge: these units are started anew, as after an update, and are up within a minute or it fails."""
    names = " ".join(units)
    wait = f"until systemctl -q is-active -- {names}; do sleep 1; done"
    return f"systemctl restart -- {names}\ntimeout 60 sh -c '{wait}'"
