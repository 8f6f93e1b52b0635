"""The controller io of the simulated machine: its switch, and io.max of control groups at the top."""

from __future__ import annotations

ROOT = "/sys/fs/cgroup"
_SWITCH = f"{ROOT}/cgroup.subtree_control"
_TOPS = tuple(f"{ROOT}/{name}/io.max" for name in ("init.scope", "system.slice"))
_KEYS = ("rbps", "wbps", "riops", "wiops")


def io_texts() -> dict[str, str]:
    """The files as they are when nobody uses it: no control group has io.max."""
    return {f"{ROOT}/cgroup.controllers": "cpuset cpu io memory pids", _SWITCH: "cpu memory pids"}


def write(texts: dict[str, str], path: str, text: str) -> bool:
    """Do what the kernel does with a write to one of these files; False where it is none."""
    if path == _SWITCH:
        words = set(texts[path].split()) - {"io"}
        texts[path] = " ".join(sorted(words | ({"io"} if text == "+io" else set())))
        for top in _TOPS:
            if text == "+io":
                texts.setdefault(top, "")
            else:
                texts.pop(top, None)
        return True
    if path not in _TOPS:
        return False
    number, *pairs = text.split()
    lines = dict(line.split(" ", 1) for line in texts[path].splitlines())
    limits = dict.fromkeys(_KEYS, "max") | _pairs(lines.get(number, "").split()) | _pairs(pairs)
    lines[number] = " ".join(f"{key}={limits[key]}" for key in _KEYS)
    if set(limits.values()) == {"max"}:
        del lines[number]
    texts[path] = "\n".join(f"{number} {words}" for number, words in lines.items())
    return True


def _pairs(words: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}
