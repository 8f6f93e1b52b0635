"""dns_failure: names cannot be resolved, or resolve to wrong addresses. A netfilter queue and its reader."""

from __future__ import annotations

import ipaddress
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

import node_agent
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.scopes import ScopeFields, cgroup_root, find_scope
from node_agent.steps import Step
from node_agent.steps.flush_names import FlushNames, running_caches
from node_agent.steps.helper_process import HelperProcess
from node_agent.steps.nft_table import NftChain, NftTable

from .netfilter import free_queue, table_evidence

_TYPES = {"a": (1,), "aaaa": (28,), "all": ()}
_NAME = re.compile(
    r"^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$|^\*$"
)
_PRIORITY = -10
"""At the hook input, before the filters of others: what they let in has been judged."""


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for name in names:
        with suppress(UnicodeError):
            plain = name.rstrip(".").encode("idna").decode("ascii").lower()
            if _NAME.match(plain):
                found.append(plain)
                continue
        raise ValueError(f"{name!r} is no name; allowed: example.com, *.example.com (with all below), * (all)")
    return tuple(found)


def _v4(text: str) -> str:
    return str(ipaddress.IPv4Address(text))


def _v6(text: str) -> str:
    return str(ipaddress.IPv6Address(text))


class Resolving(Target):
    """Whose answers, and the queue they go through. `caches` are programs that remember names on this node."""

    what: str
    owner: str
    cgroups: tuple[str, ...]
    queue: int
    caches: tuple[str, ...]

    def describe(self) -> str:
        return f"answers about {self.what} for {self.owner or 'all of the node'}"


class DnsFailure(Fault):
    """Answers about chosen names are spoiled where they arrive; all others pass as they are.

    The rules give each answer that comes from port 53 to a process of the injection, which lets it go, drops it or
    changes it in its place. When that process ends, the kernel lets all answers pass.
    """

    name: ClassVar[str] = "dns_failure"
    summary: ClassVar[str] = "chosen names cannot be resolved, or resolve to a wrong address"
    operator_sees: ClassVar[str] = (
        "'Name or service not known' (nxdomain), 'Temporary failure in name resolution' (servfail, timeout) or "
        "connections to a wrong address, for some names only; the name server's own log shows good answers"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"names": ["db.example.com"]},
        {"names": ["*.example.com"], "answer": "timeout", "records": "aaaa", "unit": "cron"},
    )

    names: Annotated[tuple[str, ...], AfterValidator(_names)] = Field(
        min_length=1, max_length=256,
        description="names: example.com alone, *.example.com with all below, * for all",
    )  # fmt: skip
    answer: Literal["nxdomain", "servfail", "timeout", "wrong"] = Field(
        default="nxdomain",
        description="no such name; the server failed; no answer; or a wrong address where there is one",
    )
    records: Literal["all", "a", "aaaa"] = Field(
        default="all", description="questions of every type, or only for IPv4 (a) or IPv6 (aaaa) addresses"
    )
    every: int = Field(
        default=1, ge=1, le=1 << 20, description="only the first of every so many answers that fit; 1: each"
    )
    wrong_v4: Annotated[str, AfterValidator(_v4)] = Field(
        default="192.0.2.1", description="the wrong IPv4 address; the default is nobody's (RFC 5737)"
    )
    wrong_v6: Annotated[str, AfterValidator(_v6)] = Field(
        default="2001:db8::1", description="the wrong IPv6 address; the default is nobody's (RFC 3849)"
    )
    unit: str = Field(default="", description="only this systemd unit, through its restarts; none: the node")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("netfilter.tables", "netfilter.queue")

    def locate(self, reader: Reader, facts: Facts) -> Resolving:
        cgroups: tuple[str, ...] = ()
        owner = ""
        if self.unit:
            scope = find_scope(reader, facts, ScopeFields(unit=self.unit))
            root = cgroup_root(facts, "unit")
            owner, cgroups = scope.name, tuple(f"{root}{path}" for path in (scope.cgroup, *scope.also))
        return Resolving(
            what=", ".join(self.names), owner=owner, cgroups=cgroups, queue=free_queue(reader),
            caches=running_caches(reader),
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Resolving)
        rules = tuple(
            f"{protocol} sport 53 counter name answers queue flags bypass num {target.queue}"
            for protocol in ("udp", "tcp")
        )
        table = NftTable(
            name=tag, title="answers from port 53 are judged by a process of ours", counters=("answers",),
            chains=(NftChain(name="received", hook="input", priority=_PRIORITY, rules=rules),),
        )  # fmt: skip
        payload = {
            "queue": target.queue, "names": self.names, "answer": self.answer, "types": _TYPES[self.records],
            "v4": self.wrong_v4, "v6": self.wrong_v6, "cgroups": target.cgroups, "every": self.every,
        }  # fmt: skip
        script = Path(node_agent.__file__).parent / "workers" / "dns_worker.py"
        worker = HelperProcess(
            name=tag, title=f"{self.answer} in {target.describe()}",
            argv=(sys.executable, "-I", "-S", str(script)), payload=json.dumps(payload),
        )  # fmt: skip
        return (FlushNames(when="recover", tag=tag), table, worker, FlushNames(when="inject", tag=tag))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Resolving)
        left_out = [
            "DNS over TLS and HTTPS, mDNS, LLMNR, /etc/hosts",
            "containers with a network of their own, whose answers are only forwarded here",
            "caches within programs",
        ]
        if target.cgroups:
            left_out.append(
                "what the unit asks systemd-resolved by nss-resolve or D-Bus, and nscd: they ask for it; "
                "its queries to 127.0.0.53 and to other servers are covered"
            )
        if self.answer == "wrong":
            left_out.append("answers without an address: there is nothing to make wrong")
        caches = f"; the caches of {' and '.join(target.caches)} are emptied" if target.caches else ""
        return PlanNotes(
            backend="netfilter queue",
            covers=(
                "UDP and TCP from port 53, IPv4 and IPv6, any server, 127.0.0.53 of systemd-resolved too",
                f"what systemd-resolved and nscd learn for all of the node{caches}",
            ),
            not_covered=tuple(left_out),
            warnings=("a server that does not answer is not replaced: there is no answer to spoil",),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        found = table_evidence(reader, tag, ())
        if not reader.helpers.pids(tag):
            notes = (*found.notes, "the process that judges answers has ended: all pass")
            return found.model_copy(update={"armed": False, "notes": notes})
        told = json.loads(reader.helpers.ask(tag, "report"))["counters"]
        counters = {**found.counters, **told}
        return found.model_copy(update={"hits": counters.pop("hits", 0), "counters": counters})
