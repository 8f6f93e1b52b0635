"""One line of the rule table in the kernel: chosen calls of chosen callers answer an errno."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.rules import Rule
from node_agent.steps.base import Resource, Step, Undo


class BpfRule(Step):
    """Adds a rule under `tag`, takes it out again. Rules compose, so it holds no resource.

    Links are held by the agent's process and never pinned: if the agent dies the kernel takes the rule away, so a
    revert by another process finds nothing to do. Reverting twice is fine for the same reason.
    """

    kind: Literal["bpf_rule"] = "bpf_rule"
    tag: str
    rule: Rule

    def describe(self) -> str:
        what = f"answer -{self.rule.errno}" if self.rule.errno else f"send signal {self.rule.signal}"
        return f"{what} at {', '.join(map(str, self.rule.hooks))} to {self.rule.scope.name}, {self.rule.schedule}"

    def resources(self) -> tuple[Resource, ...]:
        return ()

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        host.bpf.add(self.tag, self.rule)

    def hold(self, host: Host, expires: float) -> None:
        host.bpf.hold(self.tag, expires)

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.bpf.remove(self.tag)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        there = reader.bpf.state(self.tag) is not None
        links = [f"{link}: {text}" for link, text in reader.bpf.links().items() if self.tag in text.split()]
        return (*((f"rule {self.tag} is in the table",) if there else ()), *links)
