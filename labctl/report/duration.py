"""Durations as people type and read them: "90s", "10m", "1h30m"."""

from __future__ import annotations

import re

from node_agent.leases import MAX_LEASE_S

ALLOWED = 'a duration such as "90s", "10m" or "1h30m", more than 0 and at most 24h'

_UNITS = {"h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"^(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?$")
_ENDLESS = {"never", "forever", "infinite", "infinity", "inf", "always"}


def parse_duration(text: str) -> float:
    """Seconds of a duration. Raises ValueError saying what is allowed."""
    word = text.strip().lower()
    if word in _ENDLESS:
        raise ValueError(f"{text!r} is refused: every fault ends by itself; allowed: {ALLOWED}")
    if re.fullmatch(r"\d+(\.\d+)?", word):
        raise ValueError(f"{text!r} has no unit: {word}s, {word}m or {word}h? allowed: {ALLOWED}")
    match = _FORM.match(word)
    if not word or not match:
        raise ValueError(f"{text!r} is not a duration; allowed: {ALLOWED}")
    seconds = sum(float(match[unit]) * size for unit, size in _UNITS.items() if match[unit])
    if not 0 < seconds <= MAX_LEASE_S:
        raise ValueError(f"{text!r} is out of range; allowed: {ALLOWED}")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest form in whole seconds, "9m58s"; below ten seconds with one decimal."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left, parts = round(seconds), []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
