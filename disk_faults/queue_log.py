"""A loop device in a fault's way, because it is a queue of the block layer: the kernel logs what fails in it.

Device mapper's own targets fail I/O without a word; a disk that fails does not.
"""

from __future__ import annotations

import re

from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps.dm_names import made_devices, node_path

EARLIER_SECTORS = 256
"""The kernel logs the first sector of a request, which may begin this much before the bad one."""

STOPPED = "Aborting journal|Detected aborted journal|log I/O error|Shutting down filesystem|metadata I/O error"
"""What ext4 or XFS say when they stop."""

_LOG_LINES = 20
_ERROR = re.compile(r"I/O error, dev (?P<device>\S+), sector (?P<sector>\d+) ")


def queue_sign(operation: str, when: str) -> Sign:
    """The line that the kernel has for a request that failed; `operation` READ, WRITE or FLUSH."""
    return in_log(
        f"I/O errors of the block layer ({operation})", rf"I/O error, dev loop\d+, .*\({operation}\)", when
    )


def logged(reader: Reader, over: str, ranges: tuple[tuple[int, int], ...], mark: int) -> tuple[list[str], bool]:
    """The kernel's own lines since `mark` on the loop device over device `over`, and whether some are missing.

    Only those of `ranges`, (first, end) in sectors, count; none given: all.
    """
    records, lost = reader.log.since(mark)
    info = reader.dm.info(over)
    made = made_devices(reader)
    loops = {
        loop.path.removeprefix("/dev/")
        for loop in reader.loop.list()
        if info and loop.backing == node_path(info.number) and loop.number in made
    }
    lines = [r.text for r in records if _is_ours(r.text, loops, ranges)]
    limited = any("print_req_error" in r.text and "callbacks suppressed" in r.text for r in records)
    return lines[-_LOG_LINES:], lost > 0 or limited


def _is_ours(text: str, loops: set[str], ranges: tuple[tuple[int, int], ...]) -> bool:
    match = _ERROR.search(f"{text} ")
    if not match or match["device"] not in loops:
        return False
    sector = int(match["sector"])
    return not ranges or any(first - EARLIER_SECTORS <= sector < end for first, end in ranges)
