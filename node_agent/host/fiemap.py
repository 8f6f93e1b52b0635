"""Where a file lies on its disk. Source: Documentation/filesystems/fiemap.rst, include/uapi/linux/fiemap.h."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from node_agent.host import Extent
from node_agent.host.libc import ioctl

_REQUEST = 0xC020660B  # FS_IOC_FIEMAP
_HEAD = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQ2QI3I")
_SYNC = 0x1
_ROOM = 512
_ALL = 2**64 - 1

FLAGS = {
    0x0001: "last", 0x0002: "unknown", 0x0004: "delalloc", 0x0008: "encoded", 0x0080: "encrypted",
    0x0100: "not_aligned", 0x0200: "inline", 0x0400: "tail", 0x0800: "unwritten", 0x1000: "merged",
    0x2000: "shared",
}  # fmt: skip
"""FIEMAP_EXTENT_* by bit. `data_encrypted` of the header is `encrypted` here."""


def flag_names(bits: int) -> frozenset[str]:
    """Names of the set bits; a bit that this table does not know is named by its number, never dropped."""
    return frozenset(FLAGS.get(1 << n, f"flag_{1 << n:#x}") for n in range(32) if bits & 1 << n)


def pack_request(start: int, sync: bool) -> bytes:
    """A request for the extents from byte `start` to the end; `sync` writes dirty data back first."""
    return _HEAD.pack(start, _ALL - start, _SYNC if sync else 0, 0, _ROOM, 0) + bytes(_EXTENT.size * _ROOM)


def unpack_reply(raw: bytes) -> tuple[Extent, ...]:
    """The extents in a reply, in file order."""
    mapped = _HEAD.unpack_from(raw)[3]
    fields = (_EXTENT.unpack_from(raw, _HEAD.size + n * _EXTENT.size) for n in range(mapped))
    return tuple(
        Extent(logical=f[0], physical=f[1], length=f[2], flags=flag_names(f[5])) for f in fields
    )  # fmt: skip


def extents(fd: int, sync: bool) -> Sequence[Extent]:
    """All extents of an open file. Without the SYNC flag fresh data would be reported at place 0."""
    found: list[Extent] = []
    start = 0
    while True:
        part = _ask(fd, start, sync)
        found += part
        if not part or "last" in part[-1].flags:
            return tuple(found)
        start = part[-1].logical + part[-1].length


def _ask(fd: int, start: int, sync: bool) -> tuple[Extent, ...]:
    request = pack_request(start, sync)
    buffer = ctypes.create_string_buffer(request, len(request))
    ioctl(fd, _REQUEST, buffer)
    return unpack_reply(buffer.raw)
