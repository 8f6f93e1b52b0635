"""Probes of planted causes: scripts that see, as root on a node, whether one of them or its damage is left.

Each ends with 0 where all is well and 1 where it is not; see :class:`labctl.oracles.probe.Probe`.
"""

from __future__ import annotations

from labctl.oracles.booking import ADDRESSES, CONNECTS, NAMES
from labctl.oracles.network import Network
from labctl.oracles.probe import Probe

from .common import ADDRESS, DATA

_TEMPORARY = "place=$(mktemp /srv/data/.probe.XXXXXX) || exit 1\ntrap 'rm -f \"$place\"' EXIT\n"


def network_heals() -> Network:
    """The network as every problem looks at it, where it is what a problem plants."""
    return Network(addresses=ADDRESSES, names=NAMES, connects=CONNECTS, as_aspect="cause")


def backup_works(node: str) -> Probe:
    """Every page of the cluster can be read past the caches, and its checksum is right."""
    script = f"""
cd {DATA} || exit 1
find base global -type f -size +0 -exec dd if='{{}}' iflag=nocache count=0 status=none \\; 2>/dev/null
cd / && said=$(timeout 120 runuser -u postgres -- pg_basebackup -D - -F t -X none -c fast 2>&1 >/dev/null)
case $? in
  0) ;;
  124) exit 2 ;;
  *) echo "a backup fails: $(echo "$said" | head -n 1)"; exit 1 ;;
esac
"""
    return Probe(label="backup_works", node=node, within_s=180.0, script=script)


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
    """No process of that name runs."""
    script = f"""! pgrep -x {name} >/dev/null || {{ echo "{name} runs, $(pgrep -cx {name}) times"; exit 1; }}"""
    return Probe(label="no_such_process", node=node, script=script)


def streams(primary: str = "w2") -> Probe:
    """A standby streams from the primary."""
    script = """cd /; n=$(runuser -u postgres -- psql -XAtqc \
"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'" 2>/dev/null)
[ "${n:-0}" -ge 1 ] || { echo "it streams to nobody"; exit 1; }
"""
    return Probe(label="streams", node=primary, script=script)


def file_says(node: str, path: str, pattern: str, label: str = "setting") -> Probe:
    """A file has a line that fits an extended regular expression."""
    script = f"""grep -Eq '{pattern}' {path} || {{ echo "{path} does not say what it should"; exit 1; }}"""
    return Probe(label=label, node=node, script=script)


def new_sessions(node: str) -> Probe:
    """The server on a node takes new sessions, several at once."""
    script = """cd /; i=0; while [ $i -lt 5 ]; do i=$((i+1))
  runuser -u postgres -- timeout 20 psql -XAtqc 'SELECT 1' >/dev/null 2>&1 ||
    { echo "a new session is refused, try $i"; exit 1; }
done
"""
    return Probe(label="new_sessions", node=node, within_s=150.0, script=script)
