"""A hint for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 20
"""So many names are listed where none is near."""


def nearest(word: str, known: Iterable[str], what: str, otherwise: str = "") -> str:
    """A hint for a name that is not known: the nearest ones, else `otherwise`, else all of them."""
    names = list(known)
    likeness = {name: difflib.SequenceMatcher(None, word, name).ratio() for name in names}
    close = sorted((name for name in names if likeness[name] >= 0.5), key=lambda name: -likeness[name])[:3]
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return otherwise or (f"{what}: {', '.join(names[:MOST])}{more}" if names else f"there are no {what}")
