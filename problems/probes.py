"""Probes of planted causes: scripts that see, as root on a node, whether one of them or its damage is left.

Each ends with 0 where all is well and 1 where it is not; see :class:`labctl.oracles.probe.Probe`.
"""

from __future__ import annotations

from labctl.oracles.booking import ADDRESSES, CONNECTS, NAMES, UNITS
from labctl.oracles.network import Network
from labctl.oracles.probe import Probe
from labctl.oracles.untouched import Untouched
from labctl.run.noise import TOLERANT

from .common import ADDRESS, PSQL

_TEMPORARY = "place=$(mktemp /srv/data/.probe.XXXXXX) || exit 1\ntrap 'rm -f \"$place\"' EXIT\n"


def network_heals() -> Network:
    """The network as every problem looks at it, where it is what a problem plants."""
    return Network(addresses=ADDRESSES, names=NAMES, connects=CONNECTS, as_aspect="cause")


def untouched() -> Untouched:
    """Nobody has started anything anew that was well. What noise may restart is left out."""
    return Untouched(units=tuple(one for one in UNITS if one[1] not in TOLERANT))


def disk_is_fast(node: str, within_s: float = 6.0) -> Probe:
    """Small reads and synchronous writes of the data disk take no longer than they should."""
    script = f"""{_TEMPORARY}begin=$(cut -d' ' -f1 /proc/uptime)
timeout 60 dd if=/dev/zero of="$place" bs=4k count=24 oflag=direct,dsync status=none || exit 1
timeout 60 dd if="$place" of=/dev/null bs=4k count=24 iflag=direct status=none || exit 1
awk -v b="$begin" '{{ printf "48 requests took %.1f s\\n", $1 - b; exit $1 - b > {within_s:g} }}' /proc/uptime
"""
    return Probe(label="disk_is_fast", node=node, within_s=150.0, script=script)


def writable(node: str) -> Probe:
    """The file system takes a new file and its flush, and its superblock knows of no error."""
    script = f"""findmnt -no SOURCE /srv/data >/dev/null || {{ echo "/srv/data is not mounted"; exit 1; }}
{_TEMPORARY}timeout 30 dd if=/dev/zero of="$place" bs=4k count=4 conv=fsync status=none 2>&1 || exit 1
state=$(dumpe2fs -h "$(findmnt -no SOURCE /srv/data)" 2>/dev/null | sed -n 's/^Filesystem state: *//p')
[ "$state" = clean ] || {{ echo "the superblock says: $state"; exit 1; }}
"""
    return Probe(label="data_writable", node=node, script=script)


def room(node: str, most_percent: int = 85) -> Probe:
    """The data disk has space for others than root."""
    script = f"""used=$(df --output=pcent /srv/data | tr -dc 0-9)
[ "$used" -le {most_percent} ] || {{ echo "/srv/data is full to $used %"; exit 1; }}
"""
    return Probe(label="room", node=node, script=script)


def pings(node: str, *peers: str, lost_percent: int = 2, size: int = 56, label: str = "pings") -> Probe:
    """Packets of that size reach other nodes and come back, undivided."""
    script = "".join(
        f"""lost=$(ping -q -M do -s {size} -i 0.1 -c 80 -W 2 {ADDRESS[peer]} | grep -o '[0-9.]*% packet loss')
lost=${{lost%%\\%*}}
awk -v l="${{lost:-100}}" 'BEGIN {{ printf "to {peer}: %s %% are lost\\n", l; exit l > {lost_percent} }}' || exit 1
"""
        for peer in peers
    )
    return Probe(label=label, node=node, within_s=120.0, script=script)


def api_answers(node: str, times: int = 10) -> Probe:
    """The instance of the API on a node answers by itself, each time."""
    script = f"""i=0; while [ $i -lt {times} ]; do i=$((i+1))
  curl -fsS -m 8 -o /dev/null http://{ADDRESS[node]}:8080/health 2>/dev/null ||
    {{ echo "the API does not answer, try $i"; exit 1; }}
  sleep 0.3
done
"""
    return Probe(label="api_answers", node=node, within_s=180.0, script=script)


def resolves(node: str, name: str, address: str) -> Probe:
    """A name means that address, and no other, for programs of the node."""
    script = f"""found=$(getent ahostsv4 {name} | cut -d' ' -f1 | sort -u | tr '\\n' ' ')
[ "$found" = "{address} " ] || {{ echo "{name} is: $found"; exit 1; }}
"""
    return Probe(label="resolves", node=node, script=script)


def clock_agrees(node: str, other: str, within_s: int = 2) -> Probe:
    """The clock agrees with that of another node, which says it over HTTP to anybody."""
    script = f"""there=$(curl -sSI -m 10 http://{ADDRESS[other]}/ | sed -n 's/^Date: *//Ip' | tr -d '\\r')
[ -n "$there" ] || exit 2
apart=$(( $(date +%s) - $(date -d "$there" +%s) ))
[ "${{apart#-}}" -le {within_s} ] || {{ echo "its clock is $apart s from that of {other}"; exit 1; }}
"""
    return Probe(label="clock_agrees", node=node, script=script)


def no_process(node: str, name: str) -> Probe:
    """No process of that name runs; one that has ended and is not yet buried does not count."""
    script = f"""runs=$(ps -eo stat=,comm= | awk '$1 !~ /^Z/ && $2 == "{name}"' | wc -l)
[ "$runs" = 0 ] || {{ echo "{name} runs, $runs times"; exit 1; }}
"""
    return Probe(label="no_such_process", node=node, script=script)


def streams(primary: str = "w2") -> Probe:
    """A standby streams from the primary."""
    script = f"""cd /; n=$(runuser -u postgres -- {PSQL} -XAtqc \
"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'" 2>/dev/null)
[ "${{n:-0}}" -ge 1 ] || {{ echo "it streams to nobody"; exit 1; }}
"""  # noqa: S608 - no input
    return Probe(label="streams", node=primary, script=script)


def file_says(node: str, path: str, pattern: str, label: str = "setting") -> Probe:
    """A file has a line that fits an extended regular expression."""
    script = f"""grep -Eq '{pattern}' {path} || {{ echo "{path} does not say what it should"; exit 1; }}"""
    return Probe(label=label, node=node, script=script)


def new_sessions(node: str) -> Probe:
    """The server on a node takes new sessions, several at once."""
    script = f"""cd /; i=0; while [ $i -lt 5 ]; do i=$((i+1))
  runuser -u postgres -- timeout 20 {PSQL} -XAtqc 'SELECT 1' >/dev/null 2>&1 ||
    {{ echo "a new session is refused, try $i"; exit 1; }}
done
"""
    return Probe(label="new_sessions", node=node, within_s=150.0, script=script)


def connects(node: str, address: str, port: int, label: str = "connects") -> Probe:
    """A connection from the node to an address and port opens, five times."""
    script = f"""i=0; while [ $i -lt 5 ]; do i=$((i+1))
  timeout 6 bash -c 'exec 3<>/dev/tcp/{address}/{port}' 2>/dev/null ||
    {{ echo "no connection to {address}:{port}, try $i"; exit 1; }}
done
"""
    return Probe(label=label, node=node, script=script)


def open_files(node: str) -> Probe:
    """The system may open many more files, also for those who are not root."""
    script = """awk '{ print $1 " of " $3 " files are open"; exit $1 > 0.8 * $3 }' /proc/sys/fs/file-nr || exit 1
runuser -u nobody -- cat /etc/hostname >/dev/null 2>&1 || { echo "nobody cannot open a file"; exit 1; }
"""
    return Probe(label="open_files", node=node, script=script)


def memory_available(node: str, mib: int = 100) -> Probe:
    """There is memory to be had."""
    script = f"""awk '/^MemAvailable/ {{ print "only " $2 " kB are available"; exit $2 < {mib * 1024} }}' \
/proc/meminfo
"""
    return Probe(label="memory_available", node=node, script=script)


def memory_is_whole(node: str) -> Probe:
    """No page is out of use, and no machine check was logged since the machine booted."""
    script = """broken=$(awk '/^HardwareCorrupted/ { print $2 }' /proc/meminfo)
[ "${broken:-0}" = 0 ] || { echo "$broken kB of memory are out of use"; exit 1; }
! journalctl -kb -q --no-pager -o cat --grep 'Machine check events logged' >/dev/null ||
  { echo "machine checks are logged"; exit 1; }
"""
    return Probe(label="memory_is_whole", node=node, script=script)


def goes_on_without(dead: str) -> tuple[Probe, ...]:
    """Nothing waits for a machine that does not answer: the proxy, the primary's slots, etcd."""
    alive = f"ping -c 2 -W 2 {ADDRESS[dead]} >/dev/null 2>&1 && exit 0\n"
    proxy = f"""{alive}! grep -Eq '^ *server {ADDRESS[dead]}:8080' /etc/nginx/nginx.conf ||
  {{ echo "nginx still asks {dead}"; exit 1; }}
members=$(timeout 20 etcdctl member list 2>/dev/null) || exit 2
! echo "$members" | grep -q '{ADDRESS[dead]}' || {{ echo "etcd counts {dead} as a member"; exit 1; }}
"""
    slots = f"""{alive}cd /; n=$(runuser -u postgres -- {PSQL} -XAtqc \
"SELECT count(*) FROM pg_replication_slots WHERE NOT active") || exit 1
[ "$n" = 0 ] || {{ echo "a slot keeps WAL for {dead}"; exit 1; }}
"""  # noqa: S608 - no input
    return (
        Probe(label="without_dead", node="w1", script=proxy),
        Probe(label="no_dead_slots", node="w2", script=slots),
    )
