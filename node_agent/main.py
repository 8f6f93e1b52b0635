"""`node-agent`: serve the contract, or ask the agent that serves it here.

`node-agent call METHOD` is what labctl runs over SSH. It reads one JSON request from standard input and writes
the JSON answer to standard output. It must start fast on slow machines, so this module and that path import
little of the standard library and nothing else.
"""

from __future__ import annotations

import sys

SOCKET = "/run/groundfault/agent.sock"
CALL_TIMEOUT_S = 600.0
"""How long to wait for each line of an answer. Whoever is in a hurry ends the process."""

OK, REFUSED, USAGE, NOT_RUNNING = 0, 1, 64, 70

HELP = """usage: node-agent serve [--config DIR] [--state DIR] [--run DIR] [--listen ADDRESS:PORT]
       node-agent call METHOD [--node NAME] [--contract N] [--socket PATH]   request as JSON on standard input
       node-agent disks [--state DIR]   bring up the disks that labctl node prepare-disk prepared
       node-agent version"""

_OPTIONS = {
    "call": ("node", "contract", "socket"),
    "serve": ("config", "state", "run", "listen"),
    "disks": ("state",),
}


def main() -> int:
    """Run the command in `sys.argv`; returns its exit status."""
    command, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if command == "version" and not arguments:
        from node_agent.version import VERSION

        print(VERSION)
        return OK
    if command in ("-h", "--help", "help"):
        print(HELP)
        return OK
    allowed = _OPTIONS.get(command, ())
    options, rest, wrong = _options(arguments, allowed)
    if wrong or command not in _OPTIONS or len(rest) != (command == "call"):
        return _fail(USAGE, wrong + "\n" + HELP if wrong else HELP)
    if command == "call":
        return call(rest[0], options.get("node", ""), options.get("socket", SOCKET), options.get("contract", ""))
    if command == "disks":
        from node_agent.prepare.boot import bring_up_at_boot

        return bring_up_at_boot(options)
    from node_agent.serve import serve

    return serve(options)


def call(method: str, node: str, path: str, contract: str = "") -> int:
    """Pass the request on standard input to the agent, and its answer to standard output."""
    import socket

    words = (method, node.replace("-", "").replace(".", ""))
    if contract and not contract.isdecimal():
        return _fail(USAGE, f"not a number of a contract: {contract!r}")
    if not all(word.isascii() and (word.isalnum() or not word) for word in words) or not method:
        return _fail(USAGE, f"not a method or a node: {method!r} {node!r}")
    # A raw line feed is only ever white space in JSON. The agent does the parsing.
    request = sys.stdin.buffer.read().replace(b"\n", b" ").strip() or b"{}"
    head = f'{{"method":"{method}",' + (f'"node":"{node}",' if node else "")
    head += (f'"contract":{int(contract)},' if contract else "") + '"request":'
    answered, line = OK, b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(CALL_TIMEOUT_S)
            channel.connect(path)
            channel.sendall(head.encode() + request + b"}\n")
            for line in channel.makefile("rb"):
                if not _print(line):
                    return OK
                answered = REFUSED if line.startswith(b'{"error"') else OK
    except OSError as error:
        return _fail(NOT_RUNNING, f"the agent does not answer at {path}: {error}")
    if not line.endswith(b"\n"):
        return _fail(NOT_RUNNING, "the agent ended before its answer did")
    return answered


def _print(line: bytes) -> bool:
    """Write a line at once; False where whoever read our output has left."""
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Python would complain when it flushes standard output at exit.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return False
    return True


def _options(arguments: list[str], allowed: tuple[str, ...]) -> tuple[dict[str, str], list[str], str]:
    options: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, joined, value = word[2:].partition("=")
        if name not in allowed:
            return {}, [], f"unknown option {word}"
        if not joined:
            value = next(words, "")
        if not value:
            return {}, [], f"--{name} needs a value"
        options[name] = value
    return options, rest, ""


def _fail(status: int, message: str) -> int:
    print(message, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
