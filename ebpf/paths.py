"""Which files a rule hits: from a path with wildcards to directories the kernel can recognise. Only looks.

The part before the first wildcard is looked up now and known by device and inode from then on: bind mounts, mount
namespaces, other names of a directory and renames above it change nothing. The rest is compared with the names by
which a file was opened, as they are at the time of the call. A path without wildcards that is a file is known by
its inode alone: every hard link of it is hit.
"""

from __future__ import annotations

import posixpath

from node_agent.errors import Refusal
from node_agent.fault import Facts
from node_agent.host import FileInfo, Reader
from node_agent.rules import Match, Root

MAX_PARTS = 4
MAX_PART = 63
MAX_ROOTS = 4
UNKNOWN_NUMBERS = ("btrfs", "bcachefs", "zfs", "nfs", "nfs4", "fuse", "9p")
"""File systems whose stat answers other numbers than the kernel keeps, or whose names live elsewhere."""


def kernel_device(number: str) -> int:
    """ "major:minor" as the kernel keeps it in s_dev: include/linux/kdev_t.h."""
    major, _, minor = number.partition(":")
    return int(major) << 20 | int(minor)


def path_match(reader: Reader, facts: Facts, path: str) -> Match:
    """The roots, name patterns and depth that stand for `path`. Raises :class:`Refusal` naming field `path`."""
    if not path.startswith("/"):
        raise Refusal(f"path: {path!r} is not absolute", field="path", allowed="a path from /")
    if "[" in path:
        raise Refusal(f"path: {path} has a character class", field="path", allowed="* ? and ** as wildcards")
    head, parts, any_depth = _split(path)
    head = reader.realpath(head)
    info = reader.file_info(head)
    if info is None:
        # Never armed for a typing error: it would wait for ever, and say that all is well.
        raise Refusal(
            f"path: there is no {head}",
            field="path",
            allowed="what exists; for what is to come, a wildcard",
        )
    if len(parts) > MAX_PARTS or any(len(p.encode()) > MAX_PART for p in parts):
        raise Refusal(
            f"path: {path} is too much after its first wildcard", field="path",
            allowed=f"at most {MAX_PARTS} names of at most {MAX_PART} bytes",
        )  # fmt: skip
    roots = (_root(facts, head, info), *(_mounted_below(reader, facts, head) if any_depth else ()))
    if len(roots) > MAX_ROOTS:
        raise Refusal(
            f"path: {len(roots) - 1} file systems are mounted below {head}", field="path",
            allowed=f"a path with at most {MAX_ROOTS - 1} mounts below it",
        )  # fmt: skip
    return Match(roots=roots, parts=tuple(reversed(parts)), any_depth=any_depth)


def _split(path: str) -> tuple[str, tuple[str, ...], bool]:
    """Before the first wildcard, the names after it, and whether directories may come between."""
    names = [name for name in posixpath.normpath(path).split("/") if name]
    wild = next((i for i, name in enumerate(names) if "*" in name or "?" in name), len(names))
    head, parts = "/" + "/".join(names[:wild]), names[wild:]
    if not parts:
        return head, (), True
    any_depth = parts[0] == "**"
    if any_depth:
        parts = parts[1:]
    if "**" in parts:
        raise Refusal(f"path: {path} has ** in the middle", field="path", allowed="** as the first wildcard")
    return head, tuple(parts), any_depth


def _root(facts: Facts, path: str, info: FileInfo) -> Root:
    mount = max(
        (m for m in facts.mounts if path == m.target or path.startswith(m.target.rstrip("/") + "/")),
        key=lambda m: len(m.target), default=None,
    )  # fmt: skip
    if mount and mount.fstype in UNKNOWN_NUMBERS:
        raise Refusal(
            f"path: {path} is on {mount.fstype}, which numbers its files in its own way", field="path",
            allowed="a path on ext4, xfs, tmpfs or another local file system",
        )  # fmt: skip
    return Root(device=kernel_device(info.device), inode=info.inode)


def _mounted_below(reader: Reader, facts: Facts, path: str) -> tuple[Root, ...]:
    below = {m.target for m in facts.mounts if m.target.startswith(path.rstrip("/") + "/")}
    found = {t: reader.file_info(t) for t in sorted(below)}
    return tuple(Root(device=kernel_device(i.device), inode=i.inode) for i in found.values() if i)
