"""The plot of `make bench-ebpf`: what a call costs a process that is no target, as SVG made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

ROWS: tuple[tuple[str, str, str, int], ...] = (
    ("groundfault, nothing attached (no rule)", "groundfault", "loaded", 0),
    ("groundfault, 1 rule for another unit", "groundfault", "other unit", 1),
    ("groundfault, 10 rules for other units", "groundfault", "other unit", 10),
    ("groundfault, 1,000 rules for other units", "groundfault", "other unit", 1000),
    ("groundfault, 1,000 rules for other processes", "groundfault", "other process", 1000),
    ("fmod_ret on the call, 1 fault for another process", "fmod_ret", "other process", 1),
    ("fmod_ret on the call, 10 faults", "fmod_ret", "other process", 10),
    ("kprobe + override, 1 fault for another process", "kprobe", "other process", 1),
    ("kprobe + override, 10 faults", "kprobe", "other process", 10),
    ("seccomp on another call (its own process)", "seccomp", "other call", 1),
    ("strace of another call (its own process)", "strace", "other call", 1),
)
"""Label, mechanism, situation, number of rules."""

CALLS = (("pread", "pread of 4 KiB, cached"), ("openat", "openat + close"), ("connect", "connect, refused"))
_LEAST, _MOST = 0.1, 10_000.0  # percent
_LEFT, _WIDTH, _STEP, _TOP = 330, 520, 22, 92
_COLOURS = {"groundfault": "#0b6e4f"}
_OTHER = "#b5482a"


@dataclass(frozen=True)
class Dot:
    """One measurement: how much dearer than nothing, in percent."""

    label: str
    mechanism: str
    percent: float


def dots(results: Sequence[dict[str, Any]], call: str) -> list[Dot]:
    """What a plot of one call shows; what was not measured is left out."""
    found = {(r["mechanism"], r["situation"], r["rules"]): r for r in results if r["call"] == call}
    return [
        Dot(label, mechanism, 100 * (found[mechanism, situation, rules]["ratio"] - 1))
        for label, mechanism, situation, rules in ROWS
        if (mechanism, situation, rules) in found
    ]


def _x(percent: float) -> float:
    share = math.log(max(percent, _LEAST) / _LEAST) / math.log(_MOST / _LEAST)
    return _LEFT + share * _WIDTH


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _percent(value: float) -> str:
    if value < _LEAST:
        return "nothing"
    return f"+{value:.1f} %" if value < 100 else f"{value / 100 + 1:,.1f} times"


def _panel(title: str, shown: Sequence[Dot], top: float) -> list[str]:
    out = [_text(16, top, title, size=14, weight="bold")]
    bottom = top + 10 + _STEP * len(shown)
    for power in range(-1, 5):
        x = _x(10.0**power)
        out.append(f'<line x1="{x:.1f}" y1="{top + 4:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#dddddd"/>')
        out.append(_text(x, bottom + 14, f"{10.0**power:g} %", size=11, anchor="middle"))
    for n, dot in enumerate(shown):
        y, x = top + 20 + _STEP * n, _x(dot.percent)
        colour = _COLOURS.get(dot.mechanism, _OTHER)
        out.append(_text(_LEFT - 10, y + 4, dot.label, anchor="end"))
        out.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{x:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="3"/>'
        )
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
        out.append(_text(x + 10, y + 4, _percent(dot.percent), weight="bold"))
    return out


def svg(run: dict[str, Any]) -> str:
    """The picture of one run: a panel for each call."""
    panels: list[str] = []
    top: float = _TOP
    for call, title in CALLS:
        shown = dots(run["results"], call)
        panels += _panel(title, shown, top)
        top += _STEP * len(shown) + 56
    width, height = _LEFT + _WIDTH + 110, top - 20
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" font-family="DejaVu Sans, Helvetica, sans-serif" fill="#222222">',
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>',
        _text(16, 28, "What system-call faults cost a process that is no target", size=18, weight="bold"),
        _text(16, 50, f"more {run['unit']} for each call than with nothing loaded; logarithmic; Linux "
              f"{run['kernel']}, one run in one guest"),
    ]  # fmt: skip
    return "\n".join([*head, *panels, "</svg>"]) + "\n"
