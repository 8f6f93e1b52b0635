"""A netfilter table of an injection's own, which the kernel itself makes idle when the lease ends."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

FAMILY = "inet"
GRACE_S = 120
"""How long the rules are in force before the injection is active and its lease is known."""

_LEASE = "lease"
_PROTOCOLS = ("ipv4", "ipv6")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NftChain(_Value):
    """A base chain: nft(8), "CHAINS". `rules` in nft's words; they see packets only while the lease runs."""

    name: str
    hook: Literal["prerouting", "input", "forward", "output", "postrouting", "ingress"]
    priority: int
    rules: tuple[str, ...]
    device: str = Field(default="", description="for the hook ingress")

    def lines(self) -> tuple[str, ...]:
        """As nft reads it."""
        device = f' device "{self.device}"' if self.device else ""
        head = f"  type filter hook {self.hook}{device} priority {self.priority}"
        rules = (f"  {rule}" for rule in (f"meta nfproto != @{_LEASE} accept", *self.rules))
        return (f" chain {self.name} {{", head, *rules, " }")


class NftSet(_Value):
    """A set: `of` is the type of its elements in nft's words. Networks and ranges may overlap."""

    name: str
    of: str
    elements: tuple[str, ...] = ()
    intervals: bool = False

    def lines(self) -> tuple[str, ...]:
        """As nft reads it."""
        flags = ("  flags interval", "  auto-merge") if self.intervals else ()
        listed = (f"  elements = {{ {', '.join(self.elements)} }}",) if self.elements else ()
        return (f" set {self.name} {{", f"  type {self.of}", *flags, *listed, " }")


class NftTable(Step):
    """Makes the table `name` of family inet with counters, sets and chains, all at once.

    Each chain begins by letting everything through that is not in the set `lease`, whose elements have timeouts:
    where nobody renews them, as when the agent is killed and kept down, the kernel ends the fault. Tables of
    others are not touched; one of that name that is there is refused. Reverting deletes the table, and one that
    is gone is fine, so twice equals once.
    """

    kind: Literal["nft_table"] = "nft_table"
    name: str = Field(pattern=r"^[a-z][a-z0-9-]{2,63}$")
    title: str
    counters: tuple[str, ...] = ()
    sets: tuple[NftSet, ...] = ()
    chains: tuple[NftChain, ...]

    def script(self) -> str:
        """What nft is told: one transaction."""
        leased = ", ".join(f"{one} timeout {GRACE_S}s" for one in _PROTOCOLS)
        lines = [f"table {FAMILY} {self.name} {{"]
        lines += (f" counter {one} {{ }}" for one in self.counters)
        lines += (f" set {_LEASE} {{", "  type nf_proto", "  flags timeout", f"  elements = {{ {leased} }}", " }")
        lines += (line for one in self.sets for line in one.lines())
        lines += (line for one in self.chains for line in one.lines())
        return "\n".join((*lines, "}", ""))

    def describe(self) -> str:
        return f"add the netfilter table {FAMILY} {self.name}: {self.title}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("nft", f"table {FAMILY} {self.name}"),)

    def capture(self, reader: Reader) -> Undo:
        if has_table(reader, self.name):
            raise ConflictError(f"there is a netfilter table {FAMILY} {self.name} already")
        return {}

    def apply(self, host: Host) -> None:
        host.network.load_rules(self.script())

    def hold(self, host: Host, expires: float) -> None:
        if not has_table(host, self.name):  # somebody has flushed the ruleset: the evidence says so
            return
        seconds = max(1, math.ceil(expires - host.boottime()))
        leased = ", ".join(f"{one} timeout {seconds}s" for one in _PROTOCOLS)
        host.network.load_rules(
            f"flush set {FAMILY} {self.name} {_LEASE}\nadd element {FAMILY} {self.name} {_LEASE} {{ {leased} }}\n"
        )

    def revert(self, host: Host, undo: Undo | None) -> None:
        if has_table(host, self.name):
            host.network.load_rules(f"delete table {FAMILY} {self.name}\n")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return (f"the netfilter table {FAMILY} {self.name} is there",) if has_table(reader, self.name) else ()


def has_table(reader: Reader, name: str) -> bool:
    """Whether there is a table of that name in family inet."""
    return f"table {FAMILY} {name} {{" in reader.network.ruleset().splitlines()
