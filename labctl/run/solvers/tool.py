#!/usr/bin/env python3
"""The commands of a solver's directory, each under its own name. They need nothing but Python.

submit [FILE]    hand in a diagnosis (JSON) from a file or standard input; the last one counts
declare          say that the repair is complete; this is final
hardware WORDS   have hands do something to the hardware; without words: what there is
node WORDS       a tool of the confined interface; without words: what there is
"""

import json
import socket
import sys
from pathlib import Path

ANSWER_S = 900.0


def main() -> int:
    """Ask the runner, print its answer. 0 where it did as asked, 1 where not, 2 where there is no runner."""
    me = Path(sys.argv[0])
    kind, words = me.name, sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if kind == "submit":
        text = Path(words[0]).read_text() if words and words[0] != "-" else sys.stdin.read()
    else:
        text = " ".join(words)
    try:
        answer = ask(me.resolve().parent / "desk", {"kind": kind, "text": text})
    except (OSError, ValueError) as error:
        print(f"{kind}: nobody takes this any more: {error}", file=sys.stderr)
        return 2
    print(answer["text"], file=sys.stdout if answer["ok"] else sys.stderr)
    return 0 if answer["ok"] else 1


def ask(path: Path, said: dict[str, str]) -> dict[str, str]:
    """One request over the socket of the directory."""
    with socket.socket(socket.AF_UNIX) as desk:
        desk.settimeout(ANSWER_S)
        desk.connect(str(path))
        desk.sendall(json.dumps(said).encode() + b"\n")
        with desk.makefile("rb") as answers:
            found: dict[str, str] = json.loads(answers.readline())
            return found


if __name__ == "__main__":
    sys.exit(main())
