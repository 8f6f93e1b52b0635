"""Plots of a report, as SVG to be put into a page: matplotlib draws, the page's style colours.

Colours in what matplotlib writes are stand-ins; each becomes a variable of the style sheet, so that one drawing
serves light and dark. One figure is drawn again and again for one run after the other: making its axes anew each
time costs four times as much.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from labctl.errors import UnsupportedError
from labctl.report.runs.reading import Kind, Mark, RunView
from labctl.report.runs.summary import Rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("ink", "faint", "served", "late", "fault", "noise", "solver", "submission", "declaration", "action",
           "challenge")  # fmt: skip
"""Variables of the style sheet, as `--ink`."""

ROWS: Mapping[Kind, int] = {
    "fault": 0, "noise": 1, "solver": 2, "action": 2, "submission": 3, "declaration": 4, "challenge": 4,
}  # fmt: skip
"""Kinds that may come close to each other have their words in different rows above the plot."""

_WORDS: Mapping[Kind, str] = {"solver": "solver", "action": "action", "challenge": "challenge", "noise": "noise"}
MOST_MARKS, _MOST_WORDS = 200, 12
"""So many marks are drawn: a solver may have asked for thousands of things."""
_SVG = re.compile(r"<svg .*</svg>", re.S)
_NAMED_GROUP = re.compile(r'<g id="[^"]*"')


def colour(name: str) -> str:
    """The stand-in for a variable: a colour that nobody else draws with."""
    return f"#0a0b{COLOURS.index(name) + 1:02x}"


@contextmanager
def drawing() -> Iterator[Plotter]:
    """Draw plots while this lasts. Raises :class:`UnsupportedError` where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("plots need matplotlib", "install it: pip install 'groundfault[report]'")
    import matplotlib

    ink = colour("ink")
    settings: Any = {
        "svg.fonttype": "none", "font.size": 9, "text.color": ink,
        "axes.edgecolor": colour("faint"), "axes.labelcolor": ink, "axes.facecolor": "none",
        "figure.facecolor": "none", "xtick.color": ink, "ytick.color": ink, "axes.spines.top": False,
        "axes.spines.right": False, "legend.frameon": False, "font.family": "sans-serif",
        "text.parse_math": False,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield Plotter()


class Plotter:
    """:func:`drawing` makes one."""

    def __init__(self) -> None:
        from matplotlib.figure import Figure

        self._figure = Figure(figsize=(9.2, 3.6))
        self._success, self._latency = self._figure.subplots(2, 1, sharex=True)
        self._figure.subplots_adjust(left=0.085, right=0.99, top=0.76, bottom=0.12, hspace=0.16)
        self._lines = _axes_of_a_run(self._success, self._latency)

    def run(self, view: RunView, title: str) -> str:
        """Success and latency of a run over time, with all that happened marked."""
        data = view.series
        for line, values in zip(self._lines, (data.success, data.median_s, data.p95_s), strict=True):
            line.set_data(data.at_s, [math.nan if v is None else v for v in values])
        ends = [*(at + data.step_s for at in data.at_s[-1:]), *(mark.at_s for mark in view.marks), 1.0]
        self._success.set_xlim(0, max(ends))
        late = [v for v in (*data.median_s, *data.p95_s) if v]
        self._latency.set_ylim(min(late, default=0.01) / 1.5, max(late, default=1.0) * 1.5)
        drawn = [artist for mark in view.marks[:MOST_MARKS] for artist in self._mark(mark)]
        drawn += self._words(view.marks)
        try:
            return _svg(self._figure, title)
        finally:
            for artist in drawn:
                artist.remove()

    def rates(self, rows: Sequence[tuple[str, Rate]], title: str) -> str:
        """Rates with their intervals, one a row, those without trials left out."""
        from matplotlib.figure import Figure

        shown = [(label, rate) for label, rate in rows if rate.value is not None]
        figure = Figure(figsize=(9.2, 0.7 + 0.26 * len(shown)))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.36, right=0.97, top=0.98, bottom=0.5 / (0.7 + 0.26 * len(shown)))
        for number, (_, rate) in enumerate(shown):
            value, low, high = (math.nan if v is None else v for v in (rate.value, rate.low, rate.high))
            axes.plot((low, high), (number, number), color=colour("served"), linewidth=2.5, alpha=0.5)
            axes.plot((value,), (number,), "o", color=colour("served"), markersize=5)
        names = [f"{label} ({rate.trials} in {rate.problems})" for label, rate in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(-0.01, 1.01)
        axes.grid(axis="x", color=colour("faint"), linewidth=0.5, alpha=0.6)
        return _svg(figure, title)

    def _mark(self, mark: Mark) -> list[Any]:
        tint = colour(mark.kind)
        drawn: list[Any] = []
        for axes in (self._success, self._latency):
            style = "--" if mark.kind in ("solver", "challenge") else ":" if mark.kind == "action" else "-"
            drawn.append(axes.axvline(mark.at_s, color=tint, linewidth=1.2, linestyle=style))
            if mark.until_s is not None:
                drawn.append(axes.axvspan(mark.at_s, mark.until_s, color=tint, alpha=0.13, linewidth=0))
        return drawn

    def _words(self, marks: Sequence[Mark]) -> list[Any]:
        """A word above each mark; where there are too many of a kind, the lines have to do."""
        drawn = []
        for kind, row in ROWS.items():
            mine = [mark for mark in marks if mark.kind == kind]
            for mark in mine[:_MOST_WORDS]:
                words = _WORDS.get(kind, mark.label)
                place = self._success.get_xaxis_transform()
                right = mark.at_s > 0.8 * self._success.get_xlim()[1]
                drawn.append(
                    self._success.text(mark.at_s, 1.03 + 0.13 * row, words, transform=place, fontsize=8,
                                       color=colour(kind), ha="right" if right else "left")
                )  # fmt: skip
        return drawn


def _axes_of_a_run(success: Axes, latency: Axes) -> tuple[Any, Any, Any]:
    (share,) = success.plot([], [], color=colour("served"), linewidth=1.4)
    (median,) = latency.plot([], [], color=colour("served"), linewidth=1.2)
    (late,) = latency.plot([], [], color=colour("late"), linewidth=1.2)
    success.set_ylim(-0.03, 1.03)
    success.set_yticks((0, 0.5, 1), ("0", "50 %", "100 %"))
    success.set_ylabel("answered")
    latency.set_yscale("log")
    latency.set_ylabel("latency (s)")
    latency.set_xlabel("seconds since the start of the run")
    latency.minorticks_off()
    latency.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for words, tint, at in (("median", "served", 0.83), ("95 of 100 within", "late", 0.99)):
        latency.text(at, 0.88, words, transform=latency.transAxes, fontsize=8, color=colour(tint), ha="right")
    for axes in (success, latency):
        axes.tick_params(left=False, bottom=False)
        axes.grid(axis="y", color=colour("faint"), linewidth=0.5, alpha=0.6)
    return share, median, late


def _svg(figure: Figure, title: str) -> str:
    """The drawing alone, coloured by the page. Names of groups go: many drawings share one page."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):  # its names of shapes differ from those of other drawings
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    found = _SVG.search(out.getvalue())
    assert found
    text = _NAMED_GROUP.sub("<g", found[0])
    for name in COLOURS:
        text = text.replace(colour(name), f"var(--{name})")
    return text.replace("<svg ", f'<svg role="img" aria-label={quoteattr(title)} ', 1)
