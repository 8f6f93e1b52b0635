"""A process that belongs to an injection: it starts with it, serves its counters, and ends with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.errors import ApplyError, ConflictError
from node_agent.host import HelperFailed, Host, Reader
from node_agent.steps.base import Resource, Step, Undo

MAX_READY_S = 120.0
"""The agent does nothing else while it waits for a helper: well below the watchdog of its unit."""


class Claim(BaseModel):
    """Something a helper needs for itself, as long as the injection lives: a category of residue and a name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    name: str


class HelperProcess(Step):
    """Starts a program as a child of the agent, in a session and a control group of its own.

    `argv[0]` is a path. `payload` is the first line of its standard input. It is ready when it writes the line
    `ready`; from then on it may answer each line of standard input with one line. Its standard input ends with the
    agent, and the kernel kills it then. What it starts itself is in its control group, and should ask for a signal
    of its own at the end of its parent: only the next start of the agent ends what does not.

    Reverting goes by the name, which bears the id of the injection: in the control group and in the environment of
    every process of the helper. `capture` refuses a name that is taken. None there is fine, so twice equals once.
    """

    kind: Literal["helper_process"] = "helper_process"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,126}$")
    title: str = Field(default="a helper", description="what it does, in words")
    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    payload: str = ""
    ready: str = "ready"
    ready_s: float = Field(default=30.0, gt=0, le=MAX_READY_S)
    claims: tuple[Claim, ...] = ()
    go: str = Field(default="", description="a line that it is told once the injection is active")

    def describe(self) -> str:
        return f"start {self.name}: {self.title}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("cgroup", self.name), *(Resource(claim.kind, claim.name) for claim in self.claims))

    def capture(self, reader: Reader) -> Undo:
        taken = reader.helpers.traces(self.name)
        if taken:
            raise ConflictError(f"there is {taken[0]} of that name already")
        return {}

    def apply(self, host: Host) -> None:
        try:
            host.helpers.start(self.name, self.argv, payload=self.payload, ready=self.ready, ready_s=self.ready_s)
        except HelperFailed as failed:
            raise ApplyError(failed.told()) from failed

    def hold(self, host: Host, expires: float) -> None:
        if self.go:
            host.helpers.ask(self.name, self.go)

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.helpers.stop(self.name)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"{trace} of {self.name} is still there" for trace in reader.helpers.traces(self.name))
