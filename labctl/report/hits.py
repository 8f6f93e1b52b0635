"""Hits of a fault as a watch tells them: each once, with what lies between where some were not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from labctl.report.text import count
from node_agent.fault import Hit
from node_agent.injection import InjectionView

MICROSECONDS = 1_000_000


@dataclass
class HitLog:
    """Which hits of which node have been told."""

    _last: dict[str, int] = field(default_factory=dict)

    def new(self, injection: InjectionView) -> tuple[tuple[Hit, ...], int]:
        """The hits that were not told yet, and how many before them never will be."""
        samples = injection.evidence.samples if injection.evidence else ()
        last = self._last.get(injection.node)
        fresh = tuple(hit for hit in samples if last is None or hit.sequence > last)
        if not fresh:
            return (), 0
        self._last[injection.node] = fresh[-1].sequence
        return fresh, 0 if last is None else _gaps(last, fresh)


def _gaps(last: int, fresh: Sequence[Hit]) -> int:
    return fresh[-1].sequence - last - len(fresh)


def only_new(injection: InjectionView, fresh: tuple[Hit, ...]) -> InjectionView:
    """The same look with no other samples than these."""
    if injection.evidence is None:
        return injection
    return injection.model_copy(update={"evidence": injection.evidence.model_copy(update={"samples": fresh})})


def hit_lines(node: str, fresh: Sequence[Hit], lost: int) -> list[str]:
    """One line a hit: when (seconds since the node booted, as in the kernel log), who, which call, where, what."""
    between = [f"    {node}  ({count(lost, 'hit')} more in between)"] if lost else []
    return [*between, *(f"    {node}  {_hit_text(hit)}" for hit in fresh)]


def _hit_text(hit: Hit) -> str:
    seconds, rest = divmod(hit.time_us, MICROSECONDS)
    thread = f"/{hit.tid}" if hit.tid not in (0, hit.pid) else ""
    call = f"{hit.call} {hit.where}" if hit.where else hit.call
    answer = f" = {hit.answer}" if hit.answer else ""
    return f"[{seconds:5}.{rest:06}] #{hit.sequence}  {hit.comm}[{hit.pid}{thread}]  {call}{answer}"
