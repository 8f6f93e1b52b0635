"""The plot of `make bench-disk`, as SVG made by hand: times to plant and to take back, and throughput by way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from tests.bench.disk.report import LEAST_RATIO, MOST_P99_MS

_LEFT, _WIDTH, _STEP = 300, 520, 22
_OURS, _OTHER, _WORST = "#0b6e4f", "#b5482a", "#9bbfb2"


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def _times(result: Mapping[str, Any], top: float) -> tuple[list[str], float]:
    """A bar a fault, verb and load: to the median, and on to the 99th percentile."""
    rows = [
        (f"{fault}: {verb}, {name}", found[load][verb])
        for fault, found in result["latency"].items()
        for verb in ("inject", "recover")
        for load, name in (("idle", "disk idle"), ("load", "full load"))
    ]
    most = max([MOST_P99_MS * 1.2, *(row["p99_ms"] for _, row in rows)])
    out = [_text(16, top, "To plant a fault and to take it back: median, and 99th percentile (ms)", size=14,
                 weight="bold")]  # fmt: skip
    for number, (label, row) in enumerate(rows):
        y = top + 20 + _STEP * number
        middle, worst = (_LEFT + _WIDTH * row[key] / most for key in ("p50_ms", "p99_ms"))
        out += [_text(_LEFT - 10, y + 4, label, anchor="end"), _line(_LEFT, y, worst, y, _WORST, 6),
                _line(_LEFT, y, middle, y, _OURS, 6),
                _text(worst + 8, y + 4, f"{row['p50_ms']:.0f}, {row['p99_ms']:.0f}", weight="bold")]  # fmt: skip
    bottom = top + 20 + _STEP * len(rows)
    aim = _LEFT + _WIDTH * MOST_P99_MS / most
    return [*out, _line(aim, top + 8, aim, bottom - 10, "#222222")], bottom + 24


def _shares(result: Mapping[str, Any], kind: str, title: str, top: float) -> tuple[list[str], float]:
    """A dot a job and way, with its interval."""
    rows = [row for row in result[kind] if not row["arm"].startswith("bare")]
    most = max([1.1, *(row["high"] for row in rows)])
    out = [_text(16, top, title, size=14, weight="bold")]
    bottom = top + 20 + _STEP * len(rows)
    for per_cent in (0, 20, 40, 60, 80, 100):
        x = _LEFT + _WIDTH * per_cent / 100 / most
        out += [_line(x, top + 6, x, bottom - 10, "#dddddd"),
                _text(x, bottom + 6, f"{per_cent} %", size=11, anchor="middle")]  # fmt: skip
    aim = _LEFT + _WIDTH * LEAST_RATIO / most
    out.append(_line(aim, top + 6, aim, bottom - 10, "#222222"))
    for number, row in enumerate(rows):
        y, colour = top + 20 + _STEP * number, _OTHER if row["arm"] == "fuse" else _OURS
        low, x, high = (_LEFT + _WIDTH * row[key] / most for key in ("low", "share", "high"))
        way = {"fuse": "FUSE (bindfs)", "linear": "dm-linear, file", "linear, disk": "dm-linear, disk"}[row["arm"]]
        out += [_text(_LEFT - 10, y + 4, f"{row['job']}: {way}", anchor="end"), _line(low, y, high, y, colour, 2),
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
                _text(high + 8, y + 4, f"{100 * row['share']:.1f} %", weight="bold")]  # fmt: skip
    return out, bottom + 36


def svg(result: Mapping[str, Any]) -> str:
    """The picture of one run."""
    times, below = _times(result, 72)
    timed, under = _shares(result, "timed", "Throughput, share of the bare disk's: timed on a node", below)
    counted, end = _shares(result, "counted", "The same by instructions, where the processor is the limit", under)
    width = _LEFT + _WIDTH + 120
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{end:.0f}" '
        f'viewBox="0 0 {width} {end:.0f}" font-family="DejaVu Sans, Helvetica, sans-serif" fill="#222222">',
        f'<rect width="{width}" height="{end:.0f}" fill="white"/>',
        _text(16, 28, "Disk faults: what they take, and what the layer under them costs", size=18, weight="bold"),
        _text(16, 48, f"one run; {result['machine']['accelerator']}; black lines: what was to be reached"),
    ]  # fmt: skip
    return "\n".join([*head, *times, *timed, *counted, "</svg>"]) + "\n"
