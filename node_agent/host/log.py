"""The kernel log by /dev/kmsg, record by record with sequence numbers, so that gaps are seen.

Source: Documentation/ABI/testing/dev-kmsg of the kernel.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from node_agent.host import LogRecord

KEPT = 16384
"""Records; a ring buffer of the usual size holds fewer."""

_RECORD_BYTES = 8192


def parse_record(data: bytes) -> LogRecord:
    """Parse "priority,sequence,microseconds,flags[,…];text" and drop its " KEY=value" lines."""
    head, _, rest = data.decode(errors="replace").partition(";")
    priority, sequence, time_us = head.split(",")[:3]
    text = rest.split("\n", 1)[0]
    return LogRecord(sequence=int(sequence), time_us=int(time_us), level=int(priority) & 7, text=text)


class KernelLog:
    """Reads the ring buffer, each record once: a look costs what is new, not what the buffer holds.

    What was read is kept, the latest :data:`KEPT` records of it. The file stays open with the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._kept: deque[LogRecord] = deque(maxlen=KEPT)

    def mark(self) -> int:
        """The sequence number the next record will have."""
        with self._lock:
            return self._read_on()

    def since(self, mark: int) -> tuple[Sequence[LogRecord], int]:
        """Records from `mark` on, and how many of them the buffer no longer had."""
        with self._lock:
            following = self._read_on()
            found = list(takewhile(lambda record: record.sequence >= mark, reversed(self._kept)))[::-1]
        return found, max(0, following - mark - len(found))

    def _read_on(self) -> int:
        """Take in what is new; the sequence number of the next record. Gaps show in the numbers."""
        if self._fd < 0:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        while True:
            try:
                self._kept.append(parse_record(os.read(self._fd, _RECORD_BYTES)))
            except BlockingIOError:
                return self._kept[-1].sequence + 1 if self._kept else 0
            except OSError as error:
                if error.errno != errno.EPIPE:  # EPIPE: some were overwritten before; the next read goes on
                    raise
