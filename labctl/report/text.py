"""Small pieces that every report is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

NARROWEST = 24
"""Columns that are left to the text whatever the terminal: words are not stacked one on another."""


GAP = 2
"""Blanks between columns."""


def labelled(rows: Sequence[tuple[str, str]], indent: str = "  ", width: int = 0) -> list[str]:
    """Lines "label  text", aligned and folded to `width` columns (0: not at all); rows without text are left out.

    A label that repeats the one before it is not told again.
    """
    full = [(label, text) for label, text in rows if text]
    left = max((len(label) for label, _ in full), default=0)
    room = max(NARROWEST, width - len(indent) - left - 2)
    lines, before = [], ""
    for label, text in full:
        folded = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if width else [text]
        for number, piece in enumerate(folded):
            shown = "" if number or label == before else label
            lines.append(f"{indent}{shown:<{left}}  {piece}")
        before = label
    return lines


class PlainTable:
    """A table without lines, as command-line users know it.

    Where a terminal is too narrow the last column, which has the long words, is folded; nothing is ever cut.
    """

    def __init__(self, headers: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        head = [Text(header, style="bold") for header in headers]
        body = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
        self._rows = [head, *body]
        self._widths = [max(row[n].cell_len for row in self._rows) for n in range(len(headers) - 1)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One renderable a line, for rich."""
        room = max(NARROWEST, options.max_width - sum(self._widths) - GAP * len(self._widths))
        for row in self._rows:
            for number, piece in enumerate(row[-1].wrap(console, room) or [Text()]):
                line = Text(no_wrap=True, overflow="ignore")
                for cell, width in zip(row, self._widths, strict=False):
                    line.append_text(cell if number == 0 else Text())
                    line.pad_right(width + GAP - (cell.cell_len if number == 0 else 0))
                yield line.append_text(piece)


def count(number: int, noun: str) -> str:
    """ "1 hit", "3 hits"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
