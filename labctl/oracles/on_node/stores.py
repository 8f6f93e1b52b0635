"""Asks the etcd member and the Valkey server of this node how they are and how they are set up."""

from __future__ import annotations

import base64
import json
import socket
import sys
from typing import Any

READ = base64.b64encode(b"booking/leader").decode()


def posted(path: str, body: Any, within_s: float) -> Any:
    """An answer of etcd's JSON gateway. Raises OSError."""
    import urllib.request  # an emulated node takes a while to load it, and not each look needs it

    request = urllib.request.Request(f"http://127.0.0.1:2379{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=within_s) as reply:  # noqa: S310
        return json.loads(reply.read())


def etcd(within_s: float) -> dict[str, Any]:
    """How the member is. Its read is one that a majority has to agree to."""
    try:
        status = posted("/v3/maintenance/status", {}, within_s)
        posted("/v3/kv/range", {"key": READ}, within_s)
        members = posted("/v3/cluster/member/list", {}, within_s)["members"]
        alarms = posted("/v3/maintenance/alarm", {"action": "GET"}, within_s).get("alarms", [])
    except OSError as error:
        return {"error": str(error)}
    listed = {m.get("name", ""): f"{m['ID']} {' '.join(sorted(m.get('peerURLs', ())))}" for m in members}
    return {
        "cluster": status["header"]["cluster_id"],
        "leader": status.get("leader", ""),
        "version": status.get("version", ""),
        "members": listed,
        "alarms": sorted(a.get("alarm", "") for a in alarms),
    }


def talk(*commands: tuple[str, ...], within_s: float) -> list[str]:
    """What Valkey answers, each answer's lines after the other. Raises OSError."""
    sent = b"".join(
        f"*{len(words)}\r\n".encode() + b"".join(f"${len(w.encode())}\r\n{w}\r\n".encode() for w in words)
        for words in (*commands, ("QUIT",))
    )
    with socket.create_connection(("127.0.0.1", 6379), timeout=within_s) as wire:
        wire.sendall(sent)
        text = b""
        while got := wire.recv(65536):
            text += got
    return text.decode(errors="replace").split("\r\n")


def valkey(within_s: float) -> dict[str, Any]:
    """Its settings, and what it says of its data on the disk."""
    try:
        lines = talk(("CONFIG", "GET", "*"), ("INFO", "persistence"), within_s=within_s)
    except OSError as error:
        return {"error": str(error)}
    count = int(lines[0][1:]) if lines[0][:1] in ("*", "%") else 0
    if not count:
        return {"error": lines[0]}
    words = lines[2 : 2 + 2 * count : 2] if lines[0][0] == "*" else []
    said = dict(line.split(":", 1) for line in lines if ":" in line and line.split(":", 1)[0].islower())
    kept = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    return {
        "settings": dict(zip(words[::2], words[1::2], strict=True)),
        "kept": {name: said.get(name, "") for name in kept},
    }


def main() -> None:
    given = json.loads(sys.argv[1])
    said = {"etcd": etcd(given["within_s"])} if given["etcd"] else {}
    if given["valkey"]:
        said["valkey"] = valkey(given["within_s"])
    print(json.dumps(said))


if __name__ == "__main__":
    main()
