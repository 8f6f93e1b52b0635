"""The kernel log by /dev/kmsg, record by record with sequence numbers, so that gaps are seen.

Source: Documentation/ABI/testing/dev-kmsg of the kernel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from node_agent.host import LogRecord

_RECORD_BYTES = 8192


def parse_record(data: bytes) -> LogRecord:
    """Parse "priority,sequence,microseconds,flags[,…];text" and drop its " KEY=value" lines."""
    head, _, rest = data.decode(errors="replace").partition(";")
    priority, sequence, time_us = head.split(",")[:3]
    text = rest.split("\n", 1)[0]
    return LogRecord(sequence=int(sequence), time_us=int(time_us), level=int(priority) & 7, text=text)


class KernelLog:
    """Reads the ring buffer; keeps nothing."""

    def mark(self) -> int:
        """The sequence number the next record will have."""
        last = -1
        with _opened() as fd:
            for record in _records(fd):
                last = record.sequence
        return last + 1

    def since(self, mark: int) -> tuple[Sequence[LogRecord], int]:
        """Records from `mark` on, and how many of them the buffer no longer had."""
        found: list[LogRecord] = []
        with _opened() as fd:
            for record in _records(fd):
                if record.sequence >= mark:
                    found.append(record)
        expected = found[-1].sequence - mark + 1 if found else 0
        return found, expected - len(found)


@contextmanager
def _opened() -> Iterator[int]:
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _records(fd: int) -> Iterator[LogRecord]:
    """Records up to now. Gaps show in their sequence numbers."""
    while True:
        try:
            data = os.read(fd, _RECORD_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:  # EPIPE: records were overwritten while we read; the next read goes on
                raise
            continue
        yield parse_record(data)
