"""The fault names of the eBPF injector that SRE benchmarks use, each with the fault here that keeps its promise.

A name stands for what it says, not for the trick that the other tool plays: `clock_drift` lets a clock drift,
`packet_loss_sendto` loses packets, `getaddrinfo_fail` breaks name resolution, `read_error` never hits a socket.
A name that promises no errno of its own gets EIO where it says error, and otherwise what that call answers when
it really fails. Presets are defaults: whatever the user gives goes before them.

Some of the faults are built later. Until then their names are *pending*: resolving one says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Alias:
    """Another name of a fault with some parameters preset. `limits` says where the promise ends."""

    fault: str
    promise: str
    presets: Mapping[str, Any] = field(default_factory=dict)
    limits: str = ""


def _call(operation: str, errno: str, promise: str, limits: str = "", **more: Any) -> Alias:
    return Alias("syscall_error", promise, {"operation": operation, "errno": errno, **more}, limits)


def _file(operation: str, errno: str, promise: str) -> Alias:
    return Alias("file_error", promise, {"operation": operation, "errno": errno})


def _memory(promise: str, limits: str = "", **presets: Any) -> Alias:
    return Alias("memory_alloc_error", promise, presets, limits)


_BRK = "brk has no errno: it answers the old end of the heap, and the C library makes ENOMEM of that"
_VDSO = "most clock sources are read in the vDSO without a system call, which nothing in the kernel can fail"
_LARGE, _LARGE_HEAP = 1 << 20, 1 << 18

ALIASES: Mapping[str, Alias] = MappingProxyType({
    # files
    "read_error": _file("read", "EIO", "reads of files fail"),
    "pread_error": _call("pread64", "EIO", "positioned reads fail, plain ones do not"),
    "write_error": Alias("write_error", "writes to a disk fail, while reads go well", {}),
    "pwrite_error": _call("pwrite64", "EIO", "positioned writes fail, plain ones do not"),
    "fsync_error": _call("fsync", "EIO", "flushing files to disk fails"),
    "open_error": _file("open", "EIO", "opening files fails"),
    "force_open_ret_eperm": _file("open", "EPERM", "opening files answers EPERM"),
    "force_read_ret_ok": Alias("short_io", "reads succeed, without data", {"operation": "read", "max_bytes": 0}),
    "close_fail": _call("close", "EIO", "close fails"),
    "force_close_ret_err": _call("close", "EIO", "close answers an error"),
    "dup_fail": _call("dup", "EMFILE", "duplicating a file descriptor fails", "dup2 and dup3 are other calls"),
    "ioctl_fail": _call("ioctl", "ENOTTY", "ioctl fails"),
    "mount_io_error": _call("mount", "EIO", "mounting answers EIO"),
    # disks
    "latent_sector_error": Alias("latent_sector_error", "sectors of a disk cannot be read"),
    "block_read_error": Alias("latent_sector_error", "reads of some blocks fail"),
    # memory
    "mmap_fail": _call("mmap", "ENOMEM", "mapping memory or files fails"),
    "mmap_oom": _memory("mapping more memory fails for want of it", operation="mmap", errno="ENOMEM"),
    "brk_fail": _memory("the heap does not grow", _BRK, operation="brk", errno="ENOMEM"),
    "mlock_fail": _call("mlock", "ENOMEM", "locking memory fails"),
    "force_mmap_eagain": _call("mmap", "EAGAIN", "mapping answers EAGAIN"),
    "force_brk_eagain": _memory("the heap does not grow", _BRK, operation="brk", errno="EAGAIN"),
    "force_mlock_eperm": _call("mlock", "EPERM", "locking memory answers EPERM"),
    "force_mprotect_eacces": _call("mprotect", "EACCES", "changing the protection of memory answers EACCES"),
    "force_swapon_einval": _call("swapon", "EINVAL", "turning swap on answers EINVAL"),
    "oom_memchunk": _memory("no memory for new mappings", operation="mmap", errno="ENOMEM"),
    "oom_heapspace": _memory("no memory for the heap", _BRK, operation="brk", errno="ENOMEM"),
    "oom_nonswap": _call("mlock", "ENOMEM", "no memory that may not be swapped"),
    "hfrag_memchunk": _memory(
        "large mappings fail while small ones succeed", operation="mmap", errno="ENOMEM", min_size_bytes=_LARGE
    ),
    "hfrag_heapspace": _memory(
        "the heap grows in small steps only", _BRK, operation="brk", errno="ENOMEM", min_size_bytes=_LARGE_HEAP
    ),
    "memleak_munmap": _call("munmap", "EINVAL", "memory is not given back: unmapping fails and the mapping stays"),
    "ptable_permit": _call("mprotect", "EACCES", "page permissions cannot be changed"),
    "stack_rndsegfault": Alias(
        "signal_on_syscall", "segmentation faults at random",
        {"operation": "read", "signal": "SIGSEGV", "schedule": "probability:0.01"},
    ),
    "cuda_malloc_fail": _call(
        "ioctl", "ENOMEM", "the GPU gives no memory",
        "the driver's other requests on the same devices fail, too", path="/dev/nvidia*",
    ),
    "thrash_swapon": Alias("swap_thrash", "memory pages thrash between RAM and swap"),
    "thrash_swapoff": Alias("swap_thrash", "memory pages thrash between RAM and swap"),
    # processes, limits, name spaces
    "fork_fail": Alias("fork_error", "new processes cannot be made", {"errno": "EAGAIN"}),
    "setns_fail": _call("setns", "EPERM", "entering a name space fails"),
    "prlimit_fail": _call("prlimit64", "EPERM", "reading and setting limits fails"),
    "getrandom_fail": _call("getrandom", "EAGAIN", "random numbers cannot be had"),
    # time
    "clock_drift": Alias("clock_drift", "the clock runs fast or slow"),
    "gettimeofday_fail": _call("gettimeofday", "EFAULT", "asking for the time fails", _VDSO),
    "nanosleep_throttle": Alias("syscall_delay", "sleeps take longer", {"operation": "clock_nanosleep"}),
    "nanosleep_interrupt": _call("clock_nanosleep", "EINTR", "sleeps are interrupted"),
    # network
    "socket_block": _call("socket", "EPERM", "no socket can be made"),
    "bind_enetdown": Alias("connect_error", "bind answers ENETDOWN", {"operation": "bind", "errno": "ENETDOWN"}),
    "packet_loss_sendto": Alias("packet_loss", "packets that are sent get lost", {"direction": "out"}),
    "packet_loss_recvfrom": Alias("packet_loss", "packets that arrive get lost", {"direction": "in"}),
    "getaddrinfo_fail": Alias("dns_failure", "names cannot be resolved"),
})  # fmt: skip
"""By name. `nanosleep` of the C library is the system call clock_nanosleep."""
