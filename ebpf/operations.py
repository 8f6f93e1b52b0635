"""The operations that a rule can name: families of calls, the hooks that reach them, what can be asked there."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ebpf.calls import NAMES
from node_agent.rules import CALL_BASE


@dataclass(frozen=True)
class Family:
    """Calls that do one thing. `number` is OP_… of ebpf/include/operations.h.

    `hooks`: security hooks that together see the calls of the family. `calls`: what an override or strace has to
    name one by one. `asks`: the predicates that can be answered at the hooks. `also`: hooks that not every kernel
    has, used where they are. `sockets`: socket hooks of control groups that see it for IPv4 and IPv6.
    """

    name: str
    number: int
    hooks: tuple[str, ...]
    calls: tuple[str, ...]
    asks: frozenset[str] = frozenset()
    also: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


_FILE = frozenset({"kinds", "device", "path", "open_flags"})
_NAME = frozenset({"kinds", "device", "path"})
_SOCKET = frozenset({"address", "port", "family"})


def _family(
    number: int, name: str, hooks: str, calls: str, asks: frozenset[str] = frozenset(), *, also: str = "",
    sockets: str = "",
) -> Family:  # fmt: skip
    return Family(
        name, number, tuple(hooks.split()), tuple(calls.split()), asks, tuple(also.split()), tuple(sockets.split())
    )


_ALL = (
    _family(1, "read", "file_permission", "read pread64 readv preadv preadv2 getdents getdents64", _FILE),
    _family(2, "write", "file_permission", "write pwrite64 writev pwritev pwritev2 ftruncate fallocate", _FILE,
            also="path_truncate file_truncate"),
    _family(3, "open", "file_open", "open openat openat2 creat open_by_handle_at", _FILE),
    _family(4, "create", "inode_create inode_mkdir inode_mknod inode_symlink inode_link",
            "creat mkdir mkdirat mknod mknodat symlink symlinkat link linkat", _NAME),
    _family(5, "unlink", "inode_unlink inode_rmdir", "unlink unlinkat rmdir", _NAME),
    _family(6, "rename", "inode_rename", "rename renameat renameat2", _NAME),
    _family(7, "stat", "inode_getattr", "stat lstat fstat newfstatat statx", _NAME),
    _family(8, "fsync", "", "fsync fdatasync sync_file_range msync syncfs sync", frozenset({"kinds", "device",
                                                                                           "path", "open_flags"})),
    _family(9, "mmap", "mmap_file", "mmap remap_file_pages shmat", _FILE),
    _family(10, "memory", "vm_enough_memory", "mmap brk mremap", frozenset({"min_size"})),
    _family(11, "fork", "task_alloc", "fork vfork clone clone3", frozenset({"kinds"})),
    _family(12, "exec", "bprm_check_security", "execve execveat", _FILE),
    _family(13, "socket", "socket_create", "socket socketpair", frozenset({"family"})),
    _family(14, "bind", "socket_bind", "bind", _SOCKET, sockets="bind4 bind6"),
    _family(15, "connect", "socket_connect", "connect", _SOCKET, sockets="connect4 connect6"),
    _family(16, "listen", "socket_listen", "listen", frozenset({"port", "family"})),
    _family(17, "accept", "socket_accept", "accept accept4", frozenset({"port", "family"})),
    _family(18, "send", "socket_sendmsg", "sendto sendmsg sendmmsg", _SOCKET | {"min_size"}),
    _family(19, "recv", "socket_recvmsg", "recvfrom recvmsg recvmmsg", _SOCKET | {"min_size"}),
    _family(20, "ioctl", "file_ioctl", "ioctl", _FILE, also="file_ioctl_compat"),
    _family(21, "kill", "task_kill", "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"),
    _family(22, "mount", "sb_mount sb_umount move_mount", "mount umount2 move_mount"),
    _family(23, "lock", "file_lock", "flock fcntl", _FILE),
)  # fmt: skip

FAMILIES = MappingProxyType({family.name: family for family in _ALL})
_BY_NUMBER = MappingProxyType({family.number: family for family in _ALL})

ONLY_FUNCTION = frozenset({"vm_enough_memory"})
"""Hooks whose answer is about privilege: only the security function around them can refuse."""


def operation_name(number: int) -> str:
    """The family, or the system call, of an operation's number."""
    if number >= CALL_BASE:
        return NAMES.get(number - CALL_BASE, str(number))
    return _BY_NUMBER[number].name if number in _BY_NUMBER else str(number)
