"""A kernel function under fail_function: while it is listed, its calls can be answered with an error.

Interface: /sys/kernel/debug/fail_function (Documentation/fault-injection/fault-injection.rst); the functions that
may be listed are those of /sys/kernel/debug/error_injection/list.
"""

from __future__ import annotations

import errno
from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

DIRECTORY = "/sys/kernel/debug/fail_function"
INJECT = f"{DIRECTORY}/inject"


class FailingFunction(Step):
    """Lists one function with the value it is to answer; reverting takes exactly that one off the list.

    Not listed already is fine, so twice equals once. Nothing is ever written to the list that would empty it.
    """

    kind: Literal["failing_function"] = "failing_function"
    function: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
    answer: int = Field(description="what it returns, signed")

    def describe(self) -> str:
        return f"let {self.function} answer {self.answer} where fail_function says so"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", INJECT),)

    def capture(self, reader: Reader) -> Undo:
        listed = reader.read_text(INJECT).split()
        if listed:
            raise ConflictError(f"somebody else lets {', '.join(listed)} fail")
        return {}

    def apply(self, host: Host) -> None:
        host.write_text(INJECT, self.function)
        host.write_text(f"{DIRECTORY}/{self.function}/retval", f"{self.answer & (2**64 - 1):#x}")

    def revert(self, host: Host, undo: Undo | None) -> None:
        if not self.leftovers(host, undo):
            return
        try:
            host.write_text(INJECT, f"!{self.function}")
        except OSError as error:
            if error.errno != errno.ENOENT:  # somebody was faster
                raise

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if reader.exists(f"{DIRECTORY}/{self.function}/retval"):
            return (f"{self.function} is still listed in {INJECT}",)
        return ()
