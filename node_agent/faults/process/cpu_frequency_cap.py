"""cpu_frequency_cap: CPUs run no faster than so much, as when a machine protects itself from heat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from node_agent.errors import ApplyError, Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue
from node_agent.steps.mark_file import MarkFile

from .cpus import CPU_LIST, CPUS, cpus_in, shown
from .helping import text_of

_CAPS = f"{CPUS}/cpufreq/policy[0-9]*/scaling_max_freq"


class Policy(BaseModel):
    """CPUs that change their frequency together, in kHz (Documentation/admin-guide/pm/cpufreq.rst)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    cpus: tuple[int, ...]
    was: int
    cap: int

    @property
    def file(self) -> str:
        return f"{self.folder}/scaling_max_freq"


class Frequencies(Target):
    """The policies that get a cap."""

    policies: tuple[Policy, ...]

    def describe(self) -> str:
        return ", ".join(
            f"CPU {shown(p.cpus)} at {p.cap // 1000} MHz (was {p.was // 1000})" for p in self.policies
        )


class CpuFrequencyCap(Fault):
    """The highest frequency that the kernel lets CPUs run at is lowered (scaling_max_freq).

    Only real hardware has frequencies; virtual machines refuse. This was tried on simulated files only.
    """

    name: ClassVar[str] = "cpu_frequency_cap"
    summary: ClassVar[str] = "CPUs run no faster than a part of what they can"
    operator_sees: ClassVar[str] = (
        "everything that computes is slower by the same factor, with CPUs that are no busier than ever; "
        "scaling_max_freq below cpuinfo_max_freq, and no thermal event in the log"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"max_mhz": 1200, "cpus": "0-1"})

    max_percent: float = Field(default=50, ge=1, le=99, description="of what the hardware can at most")
    max_mhz: int = Field(default=0, ge=0, le=20_000, description="so many MHz at most; 0: by max_percent")
    cpus: str = Field(
        default="", pattern=CPU_LIST, description='only these CPUs, such as "0" or "1,4-6"; none: all'
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> CpuFrequencyCap:
        if self.max_mhz and "max_percent" in self.model_fields_set and self.max_percent != 50:
            raise ValueError("max_percent, max_mhz: give one of them")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cpu.cpufreq")

    def locate(self, reader: Reader, facts: Facts) -> Frequencies:
        wanted = set(cpus_in(self.cpus))
        known = [self._policy(reader, path.rpartition("/")[0]) for path in reader.glob(_CAPS)]
        chosen = [p for p in known if not wanted or wanted & set(p.cpus)]
        covered = {cpu for p in chosen for cpu in p.cpus}
        if wanted and covered != wanted:
            groups = "; ".join(shown(p.cpus) for p in known)
            text = f"cpus: {self.cpus} are not all the CPUs that change their frequency together"
            raise Refusal(text, field="cpus", allowed=f"whole groups of {groups}")
        return Frequencies(policies=tuple(chosen))

    def _policy(self, reader: Reader, folder: str) -> Policy:
        low, high, was = (
            int(reader.read_text(f"{folder}/{name}").strip())
            for name in ("cpuinfo_min_freq", "cpuinfo_max_freq", "scaling_max_freq")
        )
        cap = self.max_mhz * 1000 or round(high * self.max_percent / 100)
        if cap < low:
            field = "max_mhz" if self.max_mhz else "max_percent"
            text = f"{field}: {cap // 1000} MHz is less than the hardware can"
            raise Refusal(text, field=field, allowed=f"from {-(-low // 1000)} MHz on")
        together = text_of(reader, f"{folder}/related_cpus").replace(" ", ",")
        return Policy(folder=folder, cpus=cpus_in(together), was=was, cap=cap)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Frequencies)
        caps = (FileValue(path=p.file, value=str(p.cap), default=str(p.was)) for p in target.policies)
        return (MarkFile(name=tag, text=f"cap: {target.describe()}"), *caps)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="cpufreq",
            covers=("the kernel's governor, and turbo above the cap",),
            not_covered=("frequencies that the firmware chooses by itself",),
            warnings=("this fault has not been seen on real hardware yet: compare scaling_cur_freq under load",),
        )

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        assert isinstance(target, Frequencies)
        for one in target.policies:
            if one.cap >= one.was:
                raise ApplyError(f"CPU {shown(one.cpus)} ran at {one.was // 1000} MHz at most already")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Frequencies)
        limits = [int(text_of(reader, p.file) or p.was) for p in target.policies]
        # Drivers round what they are told to a frequency that the hardware has.
        capped = [limit < p.was for limit, p in zip(limits, target.policies, strict=True)]
        speeds = [int(text_of(reader, f"{p.folder}/scaling_cur_freq") or 0) for p in target.policies]
        counters = {"policies": len(limits), "capped": sum(capped), "highest_cap_khz": max(limits),
                    "fastest_now_khz": max(speeds)}  # fmt: skip
        return Evidence(armed=all(capped), hits=sum(capped), counters=counters)


@capability("cpu.cpufreq", remedy="real hardware with a cpufreq driver; cpu_throttle slows one unit down anywhere")
def probe(host: Host) -> None:
    """A policy takes the cap that it has."""
    caps = host.glob(_CAPS)
    if not caps:
        raise Lacking(
            "the CPUs of this node have no frequency that the kernel can set, as in most virtual machines"
        )
    host.write_text(caps[0], host.read_text(caps[0]).strip())
