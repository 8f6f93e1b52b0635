"""Queueing disciplines and netfilter rules as text, asked of `tc` and `nft` only when the kernel says so.

Both programs take a tenth of a second to start on a slow machine, and the state of a host is looked at before and
after every injection. Sources: rtnetlink(7), include/uapi/linux/{pkt_sched,rtnetlink}.h, and nf_tables.h for the
generation that the kernel counts up with each change of a ruleset.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping

from node_agent.host import CommandError

Query = Callable[[tuple[str, ...]], str | None]
"""Standard output of a command; None where it fails or is not there."""

_HEAD = struct.Struct("=IHHII")
_TCMSG, _GENMSG = struct.Struct("=BxxxiIII"), struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_NEW_QDISC, _GET_QDISC = 36, 38
_KIND, _OPTIONS, _STAB = 1, 2, 8
_NEW_GEN, _GET_GEN = 10 << 8 | 15, 10 << 8 | 16
_GEN_ID = 1
_ROUTE, _NETFILTER = 0, 12
_ANSWER_S, _BYTES, _LOAD_S = 2.0, 65536, 30.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_COUNTER = re.compile(r'counter "?([^"\s]+)"? \{[^}]*?packets (\d+) bytes (\d+)')


class NetworkState:
    """Remembers each text with what the kernel said of it then."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._qdiscs: tuple[bytes, str] | None = None
        self._ruleset: tuple[bytes, str] | None = None

    def qdiscs(self) -> str:
        """What `tc qdisc show` says; empty where there is no tc."""
        self._qdiscs = self._fresh(self._qdiscs, qdisc_mark(), ("tc", "qdisc", "show"))
        return self._qdiscs[1]

    def ruleset(self) -> str:
        """What `nft -s list ruleset` says; empty where there is no nft."""
        self._ruleset = self._fresh(self._ruleset, ruleset_mark(), ("nft", "-s", "list", "ruleset"))
        return self._ruleset[1]

    def load_rules(self, script: str) -> None:
        """Change the ruleset by commands of nft(8): all of them in one transaction, or none. Raises CommandError.

        By argv: pyroute2 0.9 has no fwd and no egress hook.
        """
        fed(("nft", "-f", "-"), script)

    def rule_counters(self, family: str, table: str) -> Mapping[str, tuple[int, int]]:
        """Packets and bytes of the named counters of a table; none where there is no such table."""
        text = self._query(("nft", "list", "counters", "table", family, table)) or ""
        return {name: (int(packets), int(octets)) for name, packets, octets in _COUNTER.findall(text)}

    def _fresh(self, known: tuple[bytes, str] | None, mark: bytes, argv: tuple[str, ...]) -> tuple[bytes, str]:
        if known is not None and mark and known[0] == mark:
            return known
        return mark, self._query(argv) or ""


def fed(argv: tuple[str, ...], text: str) -> None:
    """Run a command that reads what to change from its standard input. Raises :class:`CommandError`."""
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_LOAD_S, check=False, env=_ENVIRONMENT
        )
    except subprocess.TimeoutExpired:
        raise CommandError(argv, None, f"{_LOAD_S:g} s") from None
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stderr)


def qdisc_mark() -> bytes:
    """Something that is the same as long as no qdisc was made, changed or taken away, and no interface renamed.

    Empty where the kernel does not say.
    """
    names = ",".join(f"{number}={name}" for number, name in socket.if_nameindex()).encode()
    found = [names]
    try:
        for kind, body in asked(_ROUTE, _GET_QDISC, _DUMP, bytes(_TCMSG.size)):
            if kind == _NEW_QDISC:
                # The last word counts users and changes by itself, as statistics do; the rest is configuration.
                found.append(body[: _TCMSG.size - 4])
                found += [v for k, v in attributes(body[_TCMSG.size :]) if k in (_KIND, _OPTIONS, _STAB)]
    except OSError:
        return b""
    return b"\0".join(found)


def ruleset_mark() -> bytes:
    """The generation of the netfilter ruleset of this network namespace; empty where the kernel has none."""
    try:
        for kind, body in asked(_NETFILTER, _GET_GEN, 0, _GENMSG.pack(0, 0, 0)):
            if kind == _NEW_GEN:
                return next((v for k, v in attributes(body[_GENMSG.size :]) if k == _GEN_ID), b"")
    except OSError:
        return b""
    return b""


def asked(protocol: int, message: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """The kernel's messages to one request: type and body. Raises OSError with its errno, or TimeoutError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as channel:
        channel.settimeout(_ANSWER_S)
        channel.send(_HEAD.pack(_HEAD.size + len(body), message, _REQUEST | flags, 1, 0) + body)
        while True:
            data = channel.recv(_BYTES)
            while data:
                size, kind, *_ = _HEAD.unpack_from(data)
                part = data[_HEAD.size : size]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    error = -struct.unpack_from("=i", part)[0]
                    raise OSError(error, os.strerror(error))
                yield kind, part
                data = data[-(-size // 4) * 4 :]
            if not flags & _DUMP:
                return


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : size]
        data = data[-(-size // 4) * 4 :]
