"""ptrace(2) of x86-64: what it takes to stop threads at their system calls and to change an argument of one.

All of a tracer's calls have to come from the thread that attached. Only the standard library: a helper process
uses this. Sources: ptrace(2); include/uapi/linux/ptrace.h; PTRACE_GET_SYSCALL_INFO is of Linux 5.3.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import stat
import struct
import sys
from dataclasses import dataclass
from typing import Literal

TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC = 1, 2, 4, 8, 16
"""Options. EXITKILL is not among them: what is traced outlives its tracer."""

EVENT_EXEC, EVENT_STOP = 4, 128
AT_A_CALL = signal.SIGTRAP | 0x80

_POKEUSER, _SYSCALL, _DETACH = 6, 24, 17
_GETEVENTMSG, _SEIZE, _INTERRUPT, _LISTEN, _GET_SYSCALL_INFO = 0x4201, 0x4206, 0x4207, 0x4208, 0x420E
_RDX = 12 * 8
"""Where struct user_regs_struct of <sys/user.h> has the third argument of a call."""

_INFO = struct.Struct("<B3xIQQQ6Q")
_ENTRY, _EXIT = 1, 2
_X86_64 = 0xC000003E
"""AUDIT_ARCH_X86_64: calls of 32-bit programs have other numbers."""

_WEXITED, _WSTOPPED, _WNOWAIT, _WALL = 4, 2, 0x01000000, 0x40000000
_P_ALL, _P_PID = 0, 1
_CHILD = struct.Struct("<iii4xiIi")
_TGKILL = 234

Kind = Literal["regular", "pipe", "socket", "device", "other"]


@dataclass(frozen=True)
class Stop:
    """What a wait found. `event` is PTRACE_EVENT_…, 0 for none; `signal` is 0 where the thread has ended."""

    tid: int
    signal: int
    event: int = 0


@dataclass(frozen=True)
class Entry:
    """A thread at the beginning of a call. `ip` is the address after the instruction that made it."""

    number: int
    ip: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Exit:
    """A thread at the end of a call, and what it is about to be answered."""

    answer: int


def supported() -> bool:
    """Whether this is a program of the one architecture whose registers are known here."""
    return platform.machine() == "x86_64" and sys.maxsize > 2**32


class Ptrace:
    """The calls. All raise OSError; ProcessLookupError where the thread has gone or does not stand still."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long
        self._libc.waitid.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int]
        self._libc.statx.argtypes = [
            ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
        ]  # fmt: skip
        self._info = ctypes.create_string_buffer(_INFO.size)
        self._child = ctypes.create_string_buffer(128)

    def _do(self, request: int, tid: int, address: int | None = None, data: int | None = None) -> int:
        answer: int = self._libc.ptrace(request, tid, address, data)
        if answer == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer

    def seize(self, tid: int, options: int) -> None:
        """Attach to a thread without stopping it."""
        self._do(_SEIZE, tid, 0, options)

    def interrupt(self, tid: int) -> None:
        """Ask a thread to stop, as EVENT_STOP; it may be at the end of a call first."""
        self._do(_INTERRUPT, tid)

    def resume(self, tid: int, number: int = 0) -> None:
        """Let a stopped thread go on until its next call or end of one, with a signal."""
        self._do(_SYSCALL, tid, 0, number)

    def listen(self, tid: int) -> None:
        """Leave a thread stopped as its own group is stopped, until SIGCONT."""
        self._do(_LISTEN, tid)

    def detach(self, tid: int) -> None:
        self._do(_DETACH, tid)

    def message(self, tid: int) -> int:
        """The number that came with an event: of EVENT_EXEC the id that the thread had before."""
        found = ctypes.c_ulong()
        self._do(_GETEVENTMSG, tid, 0, ctypes.addressof(found))
        return found.value

    def call(self, tid: int) -> Entry | Exit | None:
        """Of a thread that is AT_A_CALL. None for calls of 32-bit programs."""
        self._do(_GET_SYSCALL_INFO, tid, _INFO.size, ctypes.addressof(self._info))
        op, arch, ip, _, number, *arguments = _INFO.unpack_from(self._info)
        if op == _EXIT:
            return Exit(number - 2**64 if number >= 2**63 else number)
        return Entry(number, ip, tuple(arguments)) if op == _ENTRY and arch == _X86_64 else None

    def set_third(self, tid: int, value: int) -> None:
        """Set the register of a call's third argument."""
        self._do(_POKEUSER, tid, _RDX, value)

    def wait(self, block: bool = True) -> Stop | None:
        """Wait for any thread. None where a signal came instead, or where none has stopped and it is not to block.

        The stop is looked at, not taken: if the tracer dies before it has answered it, a signal that was about to
        be delivered still is. Raises ChildProcessError where no thread is left.
        """
        options = _WEXITED | _WSTOPPED | _WNOWAIT | _WALL | (0 if block else os.WNOHANG)
        if self._libc.waitid(_P_ALL, 0, self._child, options) == -1:
            number = ctypes.get_errno()
            if number == errno.EINTR:
                return None
            raise OSError(number, os.strerror(number))
        _, _, code, tid, _, status = _CHILD.unpack_from(self._child)
        if not tid:
            return None
        if code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
            return Stop(tid, 0)
        return Stop(tid, status & 0xFF, status >> 8)

    def take(self, tid: int) -> None:
        """Take what was looked at."""
        self._libc.waitid(_P_PID, tid, self._child, _WSTOPPED | _WALL | os.WNOHANG)

    def reap(self, tid: int) -> None:
        """Take note of a thread's end, so that its own parent can."""
        self._libc.waitid(_P_PID, tid, self._child, _WEXITED | _WALL | os.WNOHANG)

    def wake(self, tid: int, number: int) -> None:
        """A signal to a thread of this process; one that has ended gets none."""
        self._libc.syscall(_TGKILL, os.getpid(), tid, number)

    def kind(self, tid: int, fd: int) -> Kind:
        """What a descriptor is. Never asks the server of a file system, which may hang or be traced itself."""
        path = f"/proc/{tid}/fd/{fd}"
        try:
            name = os.readlink(path)  # noqa: PTH115  (at each call of the target)
        except OSError:
            return "other"
        if name.startswith("pipe:"):
            return "pipe"
        if name.startswith("socket:"):
            return "socket"
        if not name.startswith("/"):
            return "other"
        found = ctypes.create_string_buffer(256)
        if self._libc.statx(_AT_FDCWD, path.encode(), _AT_STATX_DONT_SYNC, _STATX_TYPE, found) != 0:
            return "other"
        return _KINDS.get(stat.S_IFMT(int.from_bytes(found.raw[28:30], "little")), "other")


_AT_FDCWD, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 1
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "regular", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}  # fmt: skip
