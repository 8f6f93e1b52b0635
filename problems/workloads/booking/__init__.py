"""Flight booking: nginx, an API on two nodes, PostgreSQL with a standby, Valkey, etcd. See docs/booking.md.

What each node has besides is below `nodes/`, laid out like its root; `setup/` has what is run on it once.
"""

from __future__ import annotations

from pathlib import Path

from problems.workloads import Check, File, Step, Web, Workload, files_below
from problems.workloads.booking.oncall import sudoers

_HERE = Path(__file__).parent
NODES = ("w1", "w2", "w3")

_PACKAGES = (
    "nginx-light", "gunicorn", "python3-psycopg", "python3-psycopg-c", "python3-psycopg-pool", "python3-redis",
    "valkey-server", "etcd-server", "etcd-client", "dnsmasq", "postgresql-17", "prometheus-node-exporter", "cron",
    "smartmontools", "ethtool", "tcpdump", "lsof", "sysstat", "bind9-host", "curl", "sudo", "less", "nano",
)  # fmt: skip
"""The service, the monitoring, and what whoever is on call looks with."""

_MODES = {
    "/etc/booking/booking.env": (0o640, "root:booking"),
    "/etc/booking/secret": (0o640, "root:booking"),
    "/etc/valkey/valkey.conf": (0o640, "valkey:valkey"),
    "/var/lib/postgresql/.pgpass": (0o600, "postgres:postgres"),
    "/var/lib/booking-setup/roles.sql": (0o600, "root:root"),
}


def _files(node: str) -> tuple[File, ...]:
    everywhere = files_below(_HERE / "nodes" / "all", _MODES)
    rights = File(path="/etc/sudoers.d/oncall", text=sudoers(), mode=0o440)
    service = tuple(
        file.model_copy(update={"path": f"/opt/booking/service{file.path}"})
        for file in files_below(_HERE / "service")
    )
    return (*everywhere, rights, *files_below(_HERE / "nodes" / node, _MODES), *(service if node != "w2" else ()))


def _script(name: str) -> str:
    return (_HERE / "setup" / f"{name}.sh").read_text()


def _step(title: str, **scripts: str) -> Step:
    return Step(title=title, scripts={node: _script(name) for node, name in scripts.items()})


def _active(node: str, *units: str) -> tuple[Check, ...]:
    return tuple(
        Check(node=node, what=f"{unit} is active", script=f"systemctl is-active {unit}") for unit in units
    )


_STREAMING = (
    """runuser -u postgres -- psql -XAtd postgres -c "SELECT state FROM pg_stat_replication" | grep -x streaming"""
)
_ALIKE = (
    """test "$(runuser -u postgres -- psql -XAtd booking -c 'SELECT count(*) FROM flights')" = 320"""
    """ && test "$(runuser -u postgres -- psql -XAtd booking -c 'SELECT pg_is_in_recovery()')" = t"""
)
_HEALTHY = "curl --fail --silent --show-error --max-time 10 --output /dev/null http://{}:8080/health"
_LEADER = "ETCDCTL_API=3 etcdctl --command-timeout=5s get booking/leader --print-value-only | grep ."

WORKLOAD = Workload(
    name="booking",
    title="flight booking: nginx, API on two nodes, PostgreSQL with a standby, Valkey, etcd",
    nodes=NODES,
    memory_mib=768,
    packages=_PACKAGES,
    image=(_HERE / "image.sh").read_text(),
    secrets=("BOOKING_PASSWORD", "REPLICATOR_PASSWORD", "TOKEN_SECRET"),
    files={node: _files(node) for node in NODES},
    steps=(
        _step("the machines", w1="common", w2="common", w3="common"),
        _step("names, cache, clusters", w1="front", w2="cluster", w3="cluster"),
        _step("the database", w2="primary"),
        _step("etcd", w1="etcd", w2="etcd", w3="etcd"),
        _step("the standby", w3="standby"),
        _step("the API", w1="api", w3="api"),
        _step("the way in", w1="web", w2="swept", w3="swept"),
    ),
    checks=(
        *_active("w1", "nginx", "booking-api", "booking-worker", "valkey-server", "etcd", "dnsmasq"),
        *_active("w2", "postgresql@17-main", "etcd"),
        *_active("w3", "postgresql@17-main", "booking-api", "booking-worker", "etcd"),
        *(check for node in NODES for check in _active(node, "prometheus-node-exporter", "cron")),
        Check(node="w2", what="the standby streams", script=_STREAMING),
        Check(node="w3", what="the standby answers with all flights", script=_ALIKE),
        Check(node="w1", what="the API of w1 is healthy", script=_HEALTHY.format("10.77.0.1")),
        Check(node="w1", what="the API of w3 is healthy", script=_HEALTHY.format("10.77.0.3")),
        Check(node="w1", what="a worker leads", script=_LEADER),
    ),
    web=Web(node="w1"),
)
