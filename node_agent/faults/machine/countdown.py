"""What the faults that end or hang the machine share: a process that waits until labctl has its answer."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from node_agent.fault import Evidence, Target
from node_agent.host import Reader
from node_agent.steps.helper_process import HelperProcess
from node_agent.stressors import command

DelayS = Annotated[
    float, Field(ge=1, le=60, description="seconds from the answer until it happens; recovering it calls it off")
]
AcceptReboot = Annotated[bool, Field(description="yes, the node goes away, and what runs on it is interrupted")]
AcceptDataLoss = Annotated[bool, Field(description="yes, what is not on disks at that moment is lost")]

UNWRITTEN = "what programs have written and not synced is lost, and files may be half written"
GONE = "the node goes down, and whatever runs on it with it"


class WholeMachine(Target):
    """The machine. `boot_id` is the one that ends."""

    boot_id: str
    cpus: int = 1
    files: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"the whole node, in boot {self.boot_id}"


def countdown(tag: str, title: str, worker: str, **payload: Any) -> HelperProcess:
    """The process, which is told to begin once the injection is active."""
    return HelperProcess(
        name=tag, title=title, argv=command(worker), payload=json.dumps(payload), go="go", ready_s=60.0
    )


def countdown_evidence(reader: Reader, tag: str) -> Evidence:
    """Armed while the process is there. Whether it has happened the process knows, if the machine still does."""
    said = json.loads(reader.helpers.ask(tag, "report"))
    counters = dict(said["counters"])
    hits, left = counters.pop("hits", 0), counters.get("left_ms", -1)
    soon = (f"it happens in {left / 1000:.1f} s",) if left > 0 else ()
    return Evidence(armed=bool(reader.helpers.pids(tag)), hits=hits, counters=counters, notes=soon)
