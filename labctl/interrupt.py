"""Other ways to end `labctl` than Ctrl-C, which have to end what it is in the middle of as well as that does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def as_interrupt(number: signal.Signals) -> Iterator[None]:
    """A signal is a KeyboardInterrupt. Only the main thread can say so; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)
