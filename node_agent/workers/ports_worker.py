"""Uses up the ports that connections get by themselves. Run as a script by an injection.

Towards one address and port it takes real connections of the kernel, made in repair mode (TCP_REPAIR, tcp(7) and
tcp_connect() in net/ipv4/tcp_output.c): they are established at once, no packet leaves, and they end without
one and without TIME_WAIT. The kernel itself chooses the ports, until it has none. Without an address it binds the
ports of ip_local_port_range one by one, which keeps the kernel from giving them to anybody.

Settings: `address`, `port`, `leave`. What others free is taken again. Answers: `held`, and how often the kernel
had no port for another connection of this worker's.
"""

from __future__ import annotations

import errno
import resource
import socket
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from node_agent.workers.serving import RefusedError, main_of, serve

TCP_REPAIR, IP_LOCAL_PORT_RANGE = 19, 51
Plain = socket.SocketType
"""A socket without what Python wraps it in: there are tens of thousands of them."""

_EVERY_S = 1.0
_SPARE = 64
"""Descriptors for everything else."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_MOST = Path("/proc/sys/fs/nr_open")


def port_range() -> tuple[int, int]:
    """The first and the last port that the kernel gives by itself."""
    first, last = _RANGE.read_text().split()
    return int(first), int(last)


def reserved() -> set[int]:
    """Ports within the range that the kernel never gives."""
    found: set[int] = set()
    for part in _RESERVED.read_text().strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


class Connections:
    """Connections to one address and port, until the kernel has no port for another."""

    def __init__(self, address: str, port: int) -> None:
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._to = socket.getaddrinfo(address, port, self._family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)[
            0
        ][4]
        self._held: dict[int, Plain] = {}
        self._one_by_one = True
        self.refused = 0

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._held)

    def fill(self) -> None:
        """Take what is free, and see the kernel refuse one more. Raises OSError where something else fails.

        The kernel looks for a port through all of the range, so taking them all costs it their number squared;
        where a socket can have a range of its own (IP_LOCAL_PORT_RANGE, Linux 6.3), it is told which port to try.
        """
        first, last = port_range()
        for port in range(first, last + 1) if self._one_by_one else ():
            if port not in self._held and self._one_by_one:
                self._take(port)
        while self._take(0):
            pass
        self.refused += 1

    def _take(self, port: int) -> bool:
        one = Plain(self._family, socket.SOCK_STREAM)
        try:
            if port:
                one.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=HH", port, port))
            one.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            one.connect(self._to)
        except OSError as error:
            one.close()
            if port and error.errno == errno.ENOPROTOOPT:
                self._one_by_one = False
            elif error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                raise
            return False
        self._held[one.getsockname()[1]] = one
        return True

    def give_back(self, count: int) -> None:
        """Free so many ports."""
        for port in list(self._held)[:count]:
            self._held.pop(port).close()


class Bound:
    """Sockets bound to every port of the range, whatever the destination."""

    def __init__(self) -> None:
        self._ports: dict[int, Plain] = {}
        self.refused = 0

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._ports)

    def fill(self) -> None:
        """Take what is free, with IPv4 and IPv6 at once; a port in use by somebody else is no more free."""
        first, last = port_range()
        spared = reserved()
        for port in range(first, last + 1):
            if port not in self._ports and port not in spared:
                self._take(port)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", 0))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                self.refused += 1

    def _take(self, port: int) -> None:
        family = socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
        one = Plain(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.bind(("", port))
        except OSError as error:
            one.close()
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
            return
        self._ports[port] = one

    def give_back(self, count: int) -> None:
        """Free so many ports."""
        for port in list(self._ports)[:count]:
            self._ports.pop(port).close()


def run(settings: dict[str, Any]) -> int:
    """Hold the ports until standard input ends."""
    first, last = port_range()
    wanted = last - first + 1 + _SPARE
    most = int(_MOST.read_text())
    if wanted > most:
        raise RefusedError(f"fs.nr_open is {most}, fewer than the {wanted} descriptors that this needs")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, OSError) as error:
        raise RefusedError(f"{wanted} descriptors cannot be had: {error}") from error
    taker = Connections(settings["address"], settings["port"]) if settings["address"] else Bound()
    try:
        taker.fill()
    except OSError as error:
        raise RefusedError(f"after {taker.held} ports: {error.strerror}") from error
    taker.give_back(settings["leave"])

    def again() -> None:
        if not settings["leave"]:
            taker.fill()

    return serve(
        lambda: {"counters": {"held": taker.held, "refused": taker.refused}}, every_s=_EVERY_S, tick=again
    )


if __name__ == "__main__":
    sys.exit(main_of(run))
