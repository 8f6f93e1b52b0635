"""memory_alloc_error: a process gets no more memory: mmap, brk and mremap answer ENOMEM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ebpf.placing import RuleFault, place
from node_agent.errnos import ErrnoName
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.rules import Match


class MemoryAllocError(RuleFault, Fault):
    """The kernel will not account for more memory of a process, from a size on.

    It is asked where memory is promised (private writable mappings, heap, shared memory, the copy at fork), not
    where a page is touched: what a process has, it may use.
    """

    name: ClassVar[str] = "memory_alloc_error"
    summary: ClassVar[str] = "growing its memory answers ENOMEM for one unit or process, from a size on"
    operator_sees: ClassVar[str] = (
        "the program reports that it is out of memory (malloc, fork) while free shows plenty; no OOM killer line"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron", "min_size_bytes": 1048576},
        {"cgroup": "/work", "operation": "brk", "schedule": "after:10"},
    )

    operation: Literal["any", "mmap", "brk", "mremap"] = Field(
        default="any", description="the way of growing; any: also fork and shared memory"
    )
    errno: ErrnoName = Field(default="ENOMEM", description="what it answers; brk has none of its own")
    min_size_bytes: int = Field(default=0, ge=0, lt=2**47, description="only growth of at least this much")

    def locate(self, reader: Reader, facts: Facts) -> Target:
        return place(
            reader, facts, operations=("memory",), fault=self, seed=self.seed,
            match=Match(min_size=self.min_size_bytes),
            what=f"memory growth of {self.min_size_bytes} bytes or more answers {self.errno}",
            errno=self.errno, call="" if self.operation == "any" else self.operation,
        )  # fmt: skip
