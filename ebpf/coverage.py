"""Which entry points each backend covers, and which it does not: the plan says it, and docs/syscalls.md.

Measured: tests/vm/test_syscall_coverage.py makes each call of the list on each kernel and compares. An entry is a
system call, or a way to use one that takes another path through the kernel (`pread64_direct`, `io_uring_read`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Backend = Literal["security", "override", "strace"]
Release = tuple[int, int]

NEWEST: Release = (6, 12)
"""The newest kernel that this is measured on; 6.1 is the oldest."""


@dataclass(frozen=True)
class Entries:
    """The entries of one family: those that every backend fails; only security hooks; only a backend that takes
    the calls themselves (override, strace); and none."""

    every: tuple[str, ...]
    hooks: tuple[str, ...]
    calls: tuple[str, ...]
    none: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.every, *self.hooks, *self.calls, *self.none)


def _entries(every: str, hooks: str = "", calls: str = "", none: str = "") -> Entries:
    return Entries(tuple(every.split()), tuple(hooks.split()), tuple(calls.split()), tuple(none.split()))


ENTRIES: Mapping[str, Entries] = MappingProxyType(
    {
        "read": _entries(
            "read pread64 readv preadv preadv2 preadv2_nowait pread64_direct getdents64 read_pipe read_socket "
            "read_eventfd",
            hooks="io_uring_read io_uring_readv io_uring_read_async io_uring_read_direct io_uring_read_polled "
            "aio_read sendfile splice copy_file_range",
            none="mmap_fault readlink readlinkat tee process_vm_readv",
        ),
        "write": _entries(
            "write pwrite64 writev pwritev pwritev2 pwritev2_dsync pwrite64_direct write_o_dsync ftruncate "
            "fallocate write_pipe write_socket write_eventfd",
            hooks="truncate io_uring_write io_uring_writev io_uring_write_async io_uring_write_direct "
            "io_uring_write_polled io_uring_fallocate aio_write sendfile_to_file splice_to_file copy_file_range",
            none="mmap_store vmsplice process_vm_writev",
        ),
        "open": _entries(
            "open openat openat2 creat open_by_handle_at openat_write openat_truncate openat_directory "
            "openat_tmpfile open_creat openat_creat creat_existing",
            hooks="execve_open io_uring_openat io_uring_openat2 io_uring_openat_creat",
            calls="opath",
            none="memfd_create",
        ),
        "create": _entries(
            "creat mkdir mkdirat mknod mknodat mknod_file symlink symlinkat link linkat",
            hooks="open_creat openat_creat bind_unix io_uring_openat_creat io_uring_mkdirat io_uring_symlinkat "
            "io_uring_linkat",
            none="openat_tmpfile",
        ),
        "unlink": _entries(
            "unlink unlinkat unlinkat_removedir rmdir", hooks="io_uring_unlinkat io_uring_unlinkat_removedir"
        ),
        "rename": _entries(
            "rename renameat renameat2 rename_over renameat2_exchange", hooks="io_uring_renameat"
        ),
        "stat": _entries(
            "stat lstat fstat newfstatat newfstatat_empty statx",
            hooks="io_uring_statx",
            none="access faccessat faccessat2 statfs fstatfs",
        ),
        "fsync": _entries(
            "",
            calls="fsync fsync_directory fdatasync sync_file_range msync syncfs sync",
            none="io_uring_fsync io_uring_sync_file_range aio_fsync write_o_dsync pwritev2_dsync",
        ),
        "mmap": _entries(
            "mmap_file mmap_file_shared mmap_file_exec mmap_anonymous remap_file_pages shmat",
            none="mprotect mremap",
        ),
        "memory": _entries(
            "brk mmap_private mmap_populate mmap_shared_anon mremap_grow",
            hooks="mprotect_writable stack_growth fork_copy",
            none="page_touch populate",
        ),
        "fork": _entries("fork vfork clone clone3 clone_thread pthread_create posix_spawn"),
        "exec": _entries("execve execveat execveat_fd posix_spawn"),
        "socket": _entries(
            "socket_tcp socket_tcp6 socket_udp socket_unix socket_netlink socketpair",
            hooks="io_uring_socket",
            none="accept_creates",
        ),
        "bind": _entries(
            "bind_tcp4 bind_tcp6 bind_udp4 bind_unix bind_unix_abstract", hooks="io_uring_bind", none="autobind"
        ),
        "connect": _entries(
            "connect_tcp4 connect_tcp6 connect_udp4 connect_unix connect_nonblock",
            hooks="io_uring_connect",
            none="sendto_udp sendmsg_udp sendto_fastopen",
        ),
        "listen": _entries("listen_tcp4 listen_tcp6 listen_unix", hooks="io_uring_listen"),
        "accept": _entries("accept accept4 accept_unix", hooks="io_uring_accept"),
        "send": _entries(
            "send sendmsg sendmmsg send_udp send_unix sendto_udp sendmsg_udp sendto_fastopen",
            hooks="write_socket writev_socket sendfile_to_socket splice_to_socket io_uring_send io_uring_sendmsg "
            "io_uring_send_zc io_uring_write_socket",
        ),
        "recv": _entries(
            "recv recvmsg recvmmsg recvfrom_udp recv_unix",
            hooks="read_socket readv_socket io_uring_recv io_uring_recvmsg io_uring_read_socket",
            none="splice_from_socket",
        ),
        "ioctl": _entries("ioctl_file ioctl_getflags ioctl_socket ioctl_pipe"),
        "kill": _entries(
            "kill kill_zero tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"
        ),
        "mount": _entries(
            "mount mount_bind mount_remount mount_propagation umount2 move_mount",
            none="fsopen fsconfig_create fsmount open_tree mount_setattr",
        ),
        "lock": _entries("flock fcntl_setlk fcntl_setlkw fcntl_ofd_setlk fcntl_setlease"),
    }
)  # fmt: skip

EXISTS_FROM: Mapping[str, Release] = MappingProxyType({"io_uring_bind": (6, 11), "io_uring_listen": (6, 11)})
"""Entries that older kernels of the lab do not have."""

HOOKED_FROM: Mapping[str, Release] = MappingProxyType({"sendfile_to_socket": (6, 5), "splice_to_socket": (6, 5)})
"""Entries that pass the security hooks by on older kernels: they sent pages past the hook of messages."""

OWN_ANSWER: Mapping[str, tuple[str, Release | None]] = MappingProxyType(
    {
        "brk": ("ENOMEM", None),
        "mmap_shared_anon": ("ENOMEM", None),
        "mremap_grow": ("ENOMEM", None),
        "mprotect_writable": ("ENOMEM", None),
        "fork_copy": ("ENOMEM", None),
        "stack_growth": ("SIGSEGV", None),
        "mmap_private": ("ENOMEM", (6, 12)),
        "mmap_populate": ("ENOMEM", (6, 12)),
    }
)
"""Where the kernel answers its own word whatever errno a security hook gave it: what, and until which kernel."""

KIND: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("read_pipe", "write_pipe", "ioctl_pipe", "mknod", "mknodat"), "pipe"),
        **dict.fromkeys(("read_socket", "write_socket", "ioctl_socket", "bind_unix"), "socket"),
        **dict.fromkeys(("read_eventfd", "write_eventfd", "symlink", "symlinkat", "io_uring_symlinkat"), "other"),
        **dict.fromkeys(
            ("getdents64", "openat_directory", "fsync_directory", "mkdir", "mkdirat", "io_uring_mkdirat", "rmdir",
             "unlinkat_removedir", "io_uring_unlinkat_removedir"), "directory",
        ),
        **dict.fromkeys(("clone_thread", "pthread_create"), "thread"),
        "mmap_anonymous": "",
    }
)  # fmt: skip
"""What an entry is about where that is no regular file and, of fork, no process."""

BEYOND: Mapping[str, str] = MappingProxyType(
    {
        "lock": "every other fcntl fails, too",
        "memory": "every mmap fails, too, of files and of what is promised already",
    }
)
"""What a backend that takes the calls themselves hits beside the family."""


def failing(family: str, backend: Backend, release: Release = NEWEST) -> tuple[str, ...]:
    """Entries of a family that the backend fails on a kernel that has them."""
    known = ENTRIES[family]
    if backend != "security":
        return (*known.every, *known.calls)
    return tuple(e for e in (*known.every, *known.hooks) if release >= HOOKED_FROM.get(e, (0, 0)))


def exists(entry: str, release: Release) -> bool:
    """Whether a kernel has an entry."""
    return release >= EXISTS_FROM.get(entry, (0, 0))


def answer(entry: str, backend: Backend, errno: str, release: Release) -> str:
    """What an entry that fails answers."""
    own, until = OWN_ANSWER.get(entry, ("", None))
    return own if own and backend == "security" and (until is None or release < until) else errno


BY_SOCKETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bind": ("bind_tcp4", "bind_tcp6", "bind_udp4", "io_uring_bind"),
        "connect": ("connect_tcp4", "connect_tcp6", "connect_udp4", "connect_nonblock", "io_uring_connect",
                    "sendto_fastopen"),
    }
)  # fmt: skip
"""What the socket hooks of control groups fail: the rest of the family passes them by."""


def by_sockets(family: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entry points of a family that the socket hooks fail, and those that pass them by."""
    fails = BY_SOCKETS[family]
    return fails, tuple(e for e in ENTRIES[family].all if e not in fails)


def covered(family: str, backend: Backend) -> tuple[str, ...]:
    """Entry points of a family that the backend fails, with what is to be known of them."""
    return tuple(f"{e}{_remark(e, backend)}" for e in failing(family, backend))


def not_covered(family: str, backend: Backend) -> tuple[str, ...]:
    """Entry points of a family that pass the backend by."""
    fails = set(failing(family, backend))
    return tuple(e for e in ENTRIES[family].all if e not in fails)


def by_kind(family: str, covers: Iterable[str], kinds: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of what is covered, what is of these kinds, and the rest. No kinds: all of it."""
    usual = "process" if family == "fork" else "regular"
    fits = {one: not kinds or KIND.get(one.split()[0], usual) in kinds for one in covers}
    return tuple(c for c, fit in fits.items() if fit), tuple(c for c, fit in fits.items() if not fit)


def _remark(entry: str, backend: Backend) -> str:
    if backend != "security":
        return ""
    if entry in HOOKED_FROM:
        return f" (from Linux {release_name(HOOKED_FROM[entry])})"
    own, until = OWN_ANSWER.get(entry, ("", None))
    if not own:
        return ""
    return f" ({own})" if until is None else f" ({own} before Linux {release_name(until)})"


def release_name(release: Release) -> str:
    """As people write it: 6.12."""
    return f"{release[0]}.{release[1]}"
