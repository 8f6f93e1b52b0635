"""Small pieces that every report is made of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def labelled(rows: Sequence[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Lines "label  text", aligned; rows without text are left out."""
    full = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in full), default=0)
    return [f"{indent}{label:<{width}}  {text}" for label, text in full]


def plain_table(*headers: str) -> Table:
    """A table without lines, as command-line users know it."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def count(number: int, noun: str) -> str:
    """ "1 hit", "3 hits"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
