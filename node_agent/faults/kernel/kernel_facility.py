"""What the faults made of the kernel's own fault facilities share: their dials, their steps, their evidence.

Interface: Documentation/fault-injection/fault-injection.rst. A facility is a folder of debugfs with the same dials
for all: it fails when a call is a victim's, `space` is used up, `interval` divides the number of the call, a die
of `probability` per cent says so, and `times` is not 0. `times` counts down with each failure.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from node_agent.fault import Evidence
from node_agent.host import Host, Reader
from node_agent.probe import Lacking
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.task_flags import flagged_tasks

DEBUGFS = "/sys/kernel/debug"
REMEDY = "a kernel built with CONFIG_FAULT_INJECTION_DEBUG_FS and this facility: labctl up --kernel lab"
NO_LIMIT = 1_000_000_000
"""What `times` begins with where nobody set a limit: -1 would be the kernel's, but would not count."""

_LOG_LINES = 10

Percent = Annotated[int, Field(ge=1, le=100, description="chance of each call to fail, in per cent")]
Interval = Annotated[int, Field(ge=1, le=1_000_000, description="only every so-many-th call may fail")]
Times = Annotated[int, Field(ge=0, le=NO_LIMIT, description="at most how many failures; 0: no limit")]
Pid = Annotated[int, Field(ge=0, le=2**22, description="a process, with its children now and later")]
Unit = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9:_.@\\-]*$", description="a systemd unit: its processes and their children")
]


class Dials(Protocol):
    """The fields that each of these faults has."""

    @property
    def probability_percent(self) -> int: ...
    @property
    def interval(self) -> int: ...
    @property
    def times(self) -> int: ...


def try_facility(host: Host, facility: str) -> None:
    """The probe: a dial of the facility takes the value it has. Raises :class:`Lacking`."""
    path = f"{DEBUGFS}/{facility}/interval"
    if not host.listdir(DEBUGFS):
        raise Lacking("debugfs is not mounted or is locked down", f"mount -t debugfs debugfs {DEBUGFS}")
    if not host.exists(path):
        raise Lacking(f"this kernel has no {facility}")
    host.write_text(path, host.read_text(path).strip())


def facility_steps(
    facility: str, dials: Dials, tag: str, victims: Step, *, by_task: bool, space: int = 0,
    own: tuple[tuple[str, str, str], ...] = (),
) -> tuple[Step, ...]:  # fmt: skip
    """Mark, dials, victims, and last the probability, which arms it: so the undo disarms it first.

    `own`: dials that only this facility has, as (file, value, what the kernel starts with).
    """
    settings = (
        ("task-filter", "Y" if by_task else "N", "N"),
        ("interval", str(dials.interval), "1"),
        ("times", str(_limit(dials)), "1"),
        ("space", str(space), "0"),
        ("verbose", "1", "2"),
        # A line a second is evidence enough; a log line for each failure would push out all others.
        ("verbose_ratelimit_burst", "1", "0"),
        ("verbose_ratelimit_interval_ms", "1000", "0"),
        *own,
    )
    folder = f"{DEBUGFS}/{facility}"
    return (
        MarkFile(name=tag, text=f"{facility}: {victims.describe()}"),
        *(FileValue(path=f"{folder}/{name}", value=v, default=default) for name, v, default in settings),
        victims,
        FileValue(path=f"{folder}/probability", value=str(dials.probability_percent), default="0", exclusive=True),
    )


def _limit(dials: Dials) -> int:
    return dials.times or NO_LIMIT


def facility_evidence(
    reader: Reader, facility: str, dials: Dials, log_mark: int, victims: tuple[str, int]
) -> Evidence:
    """Armed while the dial is where we turned it and there are victims. Hits: by how much `times` went down.

    `victims`: what they are, and how many there are now.
    """
    what, there = victims
    folder = f"{DEBUGFS}/{facility}"
    turned = reader.read_text(f"{folder}/probability").strip() == str(dials.probability_percent)
    left = int(reader.read_text(f"{folder}/times").strip())
    records, lost = reader.log.since(log_mark)
    said = [
        r.text for r in records if "FAULT_INJECTION: forcing a failure" in r.text and f"name {facility}," in r.text
    ]
    notes = []
    if not there:
        notes.append(f"there are no {what} any more")
    if turned and not left:
        notes.append("its limit is reached: nothing fails any more")
    return Evidence(
        armed=turned and there > 0,
        hits=max(0, _limit(dials) - left) if turned else 0,
        counters={what.replace(" ", "_"): there, "failures_left": left},
        log=tuple(said[-_LOG_LINES:]),
        log_gap=lost > 0,
        notes=tuple(notes),
    )


def victims_of(reader: Reader) -> tuple[str, int]:
    """How many tasks bear the flag."""
    return "victim tasks", len(flagged_tasks(reader))
