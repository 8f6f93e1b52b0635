"""Calls into the kernel that may never come back, given a bound.

A suspend waits for the I/O below it, a read waits for its disk. Such a call runs in a thread of its own; when its
time is up the thread gets a signal whose handler does nothing, so that a wait the kernel allows to be interrupted
ends with EINTR and is taken back by the kernel itself. A wait that cannot be interrupted leaves the thread behind,
and the message says so.
"""

from __future__ import annotations

import ctypes
import errno
import signal
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from node_agent.host.libc import libc

T = TypeVar("T")

_GRACE_S = 1.0
_SIGNAL = signal.SIGRTMAX


class _Call(Generic[T]):
    """One call in a thread: either its result or its exception."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.result: list[T] = []
        self.error: OSError | None = None
        self.crash: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.result.append(self._work())
        except OSError as error:
            self.error = error
        except Exception as crash:  # noqa: BLE001  (handed to the caller, who raises it)
            self.crash = crash


def within(seconds: float, what: str, work: Callable[[], T]) -> T:
    """The result of `work`, or TimeoutError after `seconds`. What `work` raises is raised here."""
    call = _Call(work)
    call.thread.start()
    call.thread.join(seconds)
    late = call.thread.is_alive()
    if late:
        _interrupt(call.thread)
        call.thread.join(_GRACE_S)
    if call.crash is not None:
        raise call.crash
    if call.result:
        return call.result[0]
    if late and call.thread.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, f"{what}: no end within {seconds:g} s, and it cannot be interrupted")
    if late and call.error is not None and call.error.errno == errno.EINTR:
        raise TimeoutError(errno.ETIMEDOUT, f"{what}: no end within {seconds:g} s; called off")
    assert call.error is not None
    raise call.error


def _interrupt(thread: threading.Thread) -> None:
    """Make the thread's system call return EINTR where the kernel allows it.

    The handler has to be C: a Python one can only be set by the main thread. `abs` takes an int, returns at once
    and is safe in a signal handler. Without SA_RESTART the call is not begun again (signal(7)).
    """
    libc().signal(int(_SIGNAL), ctypes.cast(libc().abs, ctypes.c_void_p))
    signal.siginterrupt(_SIGNAL, True)
    if thread.ident is not None and thread.is_alive():
        signal.pthread_kill(thread.ident, _SIGNAL)
