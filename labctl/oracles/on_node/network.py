"""Pings the other nodes with full packets, opens connections to services, and asks for names."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HEADERS = 28
"""Bytes of an ICMP echo that are no payload: IPv4 and ICMP."""


def ping(interface: str, address: str, size: int, count: int, interval_s: float) -> subprocess.Popen[str]:
    argv = ["ping", "-nq", "-M", "do", "-I", interface, "-s", str(size), "-c", str(count)]
    argv += ["-i", str(interval_s), "-W", "2", address]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def told(text: str) -> dict[str, float]:
    """What the summary of ping says; times in milliseconds."""
    packets = re.search(r"(\d+) packets transmitted, (\d+) received", text)
    times = re.search(r"= ([0-9.]+)/([0-9.]+)/([0-9.]+)/", text)
    sent, got = (int(packets[1]), int(packets[2])) if packets else (0, 0)
    least, mean, most = (float(t) for t in times.groups()) if times else (-1.0, -1.0, -1.0)
    return {"sent": sent, "got": got, "min_ms": least, "mean_ms": mean, "max_ms": most}


def connects(host: str, port: int, within_s: float) -> str:
    """Why no connection can be opened; "" where it can."""
    try:
        with socket.create_connection((host, port), timeout=within_s):
            return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


def resolve(name: str) -> list[str]:
    try:
        return sorted({str(a[4][0]) for a in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)})
    except OSError as error:
        return [f"none: {error.strerror or error}"]


def all_of(names: list[str], within_s: float) -> dict[str, list[str]]:
    """What the names stand for, asked one after the other; those that are not answered in time are said so."""
    found = {name: ["none: no answer"] for name in names}

    def ask() -> None:
        for name in names:
            found[name] = resolve(name)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(within_s)
    return dict(found)


def carrier(interface: str) -> dict[str, Any]:
    at = Path("/sys/class/net") / interface
    return {n: (at / n).read_text().strip() for n in ("operstate", "mtu", "carrier_changes") if (at / n).exists()}


def main() -> None:
    given = json.loads(sys.argv[1])
    interface, peers = given["interface"], given["peers"]
    first = carrier(interface)
    size = int(first.get("mtu", "1500")) - HEADERS
    big = {n: ping(interface, a, size, given["count"], given["interval_s"]) for n, a in peers.items()}
    small = {n: ping(interface, a, 56, given["count"] // 4, given["interval_s"] * 4) for n, a in peers.items()}
    names = all_of(given["names"], given["within_s"])
    opened = [[host, port, connects(host, port, given["within_s"])] for host, port in given["connects"]]
    pings = {name: [told(one.communicate()[0]) for one in (big[name], small[name])] for name in peers}
    last = carrier(interface)
    out = {"first": first, "last": last, "names": names, "connects": opened, "big": {}, "small": {}}
    out["big"] = {name: both[0] for name, both in pings.items()}
    out["small"] = {name: both[1] for name, both in pings.items()}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
