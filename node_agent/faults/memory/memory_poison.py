"""memory_poison: a page of RAM is broken. The process that has it there gets SIGBUS when it touches it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.frames import Page
from node_agent.scopes import ScopeFields, find_scope
from node_agent.signs import Sign, in_log, rises
from node_agent.steps import Step
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.poisoned_page import PoisonedPage
from node_agent.steps.task_flags import start_of
from node_agent.steps.unit_again import UnitAgain

from .groups import GroupFields, find_group, group_of_process, meminfo_kib, own_kib, processes_of

_LOG_LINES = 10
_CORRUPTED = "HardwareCorrupted"
_COUNT = "/sys/devices/system/node/node*/memory_failure/recovered"


class PoisonTarget(Target):
    """Pages of a process or of a file."""

    pages: tuple[tuple[int, int], ...]
    pid: int
    started: int
    unit: str
    path: str
    title: str

    def describe(self) -> str:
        return f"{len(self.pages)} pages of {self.title}"


class MemoryPoison(GroupFields, Fault):
    """Pages of RAM are declared broken, as the kernel does when the hardware reports an error it cannot correct.

    Of a process (`pid`, or the largest of a unit, control group or container): anonymous memory that nobody else
    maps. What was there is lost; the process gets SIGBUS when it touches it. Of a `file`: clean pages of the page
    cache that nobody maps; the kernel drops them and reads them from the disk again, so that nothing is lost.
    """

    name: ClassVar[str] = "memory_poison"
    summary: ClassVar[str] = "pages of RAM are broken: SIGBUS for the process that has them"
    operator_sees: ClassVar[str] = (
        "the kernel log says 'Memory failure: 0x…: recovery action for … page: Recovered', HardwareCorrupted of "
        "/proc/meminfo is not 0; a process dies of SIGBUS, with a line 'MCE: Killing …' at the moment it touches "
        "the page, and not before; memory tests of the machine find nothing"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron", "accept_data_loss": True},
        {"file": "/srv/data/a", "pages": 2},
    )

    pid: int = Field(default=0, ge=0, le=2**22, description="whose memory; none: the largest process of the unit")
    file: str = Field(default="", description="or a file, whose pages in the page cache are meant")
    pages: int = Field(default=1, ge=1, le=64, description="how many pages of 4 KiB")
    accept_data_loss: bool = Field(default=False, description="what a process has in the pages is lost for good")

    @model_validator(mode="after")
    def _one_of_them(self) -> MemoryPoison:
        if sum((bool(self.pid), bool(self.file), self.names_a_group)) != 1:
            raise ValueError("give exactly one of pid, unit, cgroup, container and file")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("memory.poison")

    def locate(self, reader: Reader, facts: Facts) -> PoisonTarget:
        if self.file:
            return self._of_file(reader)
        if self.pid:
            group = group_of_process(reader, facts, self.pid)
            pid = self.pid
        else:
            group = find_group(reader, facts, self)
            pid = max(processes_of(reader, group.path), key=lambda p: own_kib(reader, p))
        find_scope(reader, facts, ScopeFields(pid=pid))
        comm = reader.read_text(f"/proc/{pid}/comm").strip()
        title = f"process {pid} ({comm})"
        field = "pid" if self.pid else "unit"
        chosen = self._choose(field, title, reader.frames.own_pages(pid))
        return PoisonTarget(
            pages=chosen, pid=pid, started=start_of(reader, pid), unit=group.unit, path="", title=title
        )

    def _of_file(self, reader: Reader) -> PoisonTarget:
        info = reader.file_info(self.file)
        if info is None or info.kind != "file" or info.size == 0 or reader.realpath(self.file) != self.file:
            raise Refusal(
                f"file: {self.file} is no plain file with data in it", field="file",
                allowed="a path without links, of a file that is not empty",
            )  # fmt: skip
        chosen = self._choose("file", self.file, reader.frames.clean_pages(self.file))
        return PoisonTarget(pages=chosen, pid=0, started=0, unit="", path=self.file, title=f"file {self.file}")

    def _choose(self, field: str, title: str, found: Sequence[Page]) -> tuple[tuple[int, int], ...]:
        if len(found) < self.pages:
            kinds = "clean pages in the page cache that nobody maps" if self.file else "pages that it alone maps"
            raise Refusal(
                f"{field}: {title} has {len(found)} {kinds}", field=field, allowed=f"one with {self.pages} of them"
            )
        dice = random.Random(self.seed)  # noqa: S311  (a choice that can be made again)
        return tuple(sorted((page.frame, page.at) for page in dice.sample(list(found), self.pages)))

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, PoisonTarget)
        care = (UnitAgain(units=(target.unit,), once=False),) if target.unit else ()
        poisoned = (
            PoisonedPage(frame=frame, at=at, pid=target.pid, started=target.started, path=target.path)
            for frame, at in target.pages
        )
        return (*care, MarkFile(name=tag, text=f"broken: {target.describe()}"), *poisoned)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, PoisonTarget)
        if target.path:
            return PlanNotes(
                backend="hwpoison",
                covers=("the pages, once: the file gets others in their place",),
                not_covered=("what reads the file afterwards: it gets the data from the disk",),
            )
        again = "the page stays away from the process, also after the recovery: only its end helps"
        return PlanNotes(
            backend="hwpoison",
            covers=("every access to the page, by any thread of the process",),
            not_covered=("the kernel's own access to it for the process: system calls answer EFAULT",),
            warnings=(again,),
            risks={"data_loss": f"what is in {target.describe()} is lost"},
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        place = target if isinstance(target, PoisonTarget) else None
        frames = "|".join(f"{frame:x}" for frame, _ in place.pages) if place else r"[0-9a-f]+"
        found = [
            in_log("the kernel's line of the page", rf"Memory failure: 0x({frames}): recovery action for .*page"),
            rises("the kernel's count of broken pages that it could do without", _COUNT),
        ]
        if place is None or not place.path:
            pid = str(place.pid) if place else r"\d+"
            line = rf"(MCE|mce): Killing [^:]*:{pid} due to hardware memory corruption"
            found.append(in_log("the kernel's line of the SIGBUS", line, "once the process touches the page"))
        return tuple(found)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, PoisonTarget)
        records, lost = reader.log.since(log_mark)
        broken = [at for frame, at in target.pages if reader.frames.is_poisoned(frame)]
        killed = [r.text for r in records if f":{target.pid} due to hardware memory corruption" in r.text]
        named = [
            r.text for r in records if any(f"Memory failure: {frame:#x}:" in r.text for frame, _ in target.pages)
        ]
        counters = {"broken_pages": len(broken), "broken_kib_of_the_node": meminfo_kib(reader, _CORRUPTED)}
        gone = () if target.path else tuple(f"4 KiB at {at:#x} of {target.title}" for at in broken)
        return Evidence(
            armed=len(broken) == len(target.pages), hits=len(killed), counters=counters,
            log=tuple((*named, *killed)[-_LOG_LINES:]), log_gap=lost > 0, lost=gone,
        )  # fmt: skip
