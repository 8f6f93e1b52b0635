"""disk_hang: I/O of a disk does not come back, until the fault ends or so many seconds have passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.dm_names import TableLine

from .counting import is_armed, passed
from .disk_place import PlacedFault, place_of_target
from .layers import READS, WRITES, base, device, layer, let_go, planted

LONGEST_S = 3600
"""dm-delay lets an I/O go by itself after this; a recovery lets all go at once."""


class DiskHang(PlacedFault):
    """I/O blocks without an error. Each one ends after `seconds`, and all of them when the fault does.

    Nothing is lost: what hung is carried out. Whoever waits cannot be killed meanwhile.
    """

    name: ClassVar[str] = "disk_hang"
    summary: ClassVar[str] = "I/O of a data disk hangs, and goes on at the end"
    operator_sees: ClassVar[str] = (
        "processes in state D that no signal ends, load without CPU use, 'task … blocked for more than 120 "
        "seconds' in the kernel log, no I/O error; cached reads go on"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"what": "writes", "seconds": 30},
        {"range": "2048+64"},
    )

    what: Literal["all", "reads", "writes"] = Field(
        default="all", description="which I/O hangs; flushes are among the writes"
    )
    seconds: int = Field(
        default=LONGEST_S, ge=1, le=LONGEST_S, description="how long one I/O hangs unless the fault ends before"
    )

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.delay")

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        reads, writes = self.what != "writes", self.what != "reads"
        to, stuck, free = f"{base(place, tag)} 0", f"dm:{layer(tag, 'gate')} 0", self.seconds * 1000
        ways = [f"{stuck} {free}" if hangs else f"{to} 0" for hangs in (reads, writes, writes)]
        media = (
            device(place, tag, "gate", "linear", to),
            device(place, tag, "hang", "delay", " ".join(ways)),
        )
        steps = planted(place, tag, media, lambda start, length: _line(tag, start, length), drop_pages=True)
        return (*steps, let_go(place, tag, "hang", f"dm:{layer(tag, 'gate')}"))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="dm-delay",
            covers=tuple(dict.fromkeys((*READS, *WRITES, "fsync"))),
            not_covered=("reads of what is in the page cache",),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return (
            in_log(
                "tasks that hang",
                r"task \S+ blocked for more than \d+ seconds",
                "once one has waited for kernel.hung_task_timeout_secs, 120 seconds unless set",
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        hung = waiting(reader, place_of_target(target).disk)
        gone = passed(reader, layer(tag, "gate"))
        return Evidence(
            armed=is_armed(reader, place_of_target(target), lambda start, length: _line(tag, start, length)),
            hits=hung + gone.reads + gone.writes,
            counters={"hanging_now": hung, "let_go": gone.reads + gone.writes},
        )


def waiting(reader: Reader, name: str) -> int:
    """I/O in flight in a device (Documentation/block/stat.rst); 0 where it is gone.

    The one that is used tells: device mapper hands what dm-delay holds back to no device below.
    """
    info = reader.dm.info(name)
    if info is None:
        return 0
    return sum(int(word) for word in reader.read_text(f"/sys/dev/block/{info.number}/inflight").split())


def _line(tag: str, start: int, length: int) -> TableLine:
    return TableLine(start=start, length=length, kind="linear", args=f"dm:{layer(tag, 'hang')} {start}")
