"""Runs on a node as root: looks after a file system as an injection does, one request a line, one answer a line.

Arguments: device-mapper name, mount point, name of the repair. Requests: "capture" answers what is kept, "undo
JSON" gives what was kept in another life, "heal" answers what is lost and left, "die" makes the next repair
end this process with SIGKILL once the file system is unmounted, "return DISK" is what a disk that came back gets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from node_agent.errors import AgentError
from node_agent.host import CommandError, fsck
from node_agent.host.real import RealHost
from node_agent.steps import Undo
from node_agent.steps.filesystem_care import FilesystemCare


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    device, mount, name = sys.argv[1:]
    host, care = RealHost(), FilesystemCare(name=name, device=device, mount=mount)
    undo: Undo | None = None
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        answer: dict[str, Any] = {}
        try:
            if word == "capture":
                answer = undo = care.capture(host)
            elif word == "undo":
                undo = json.loads(rest)
            elif word == "die":
                fsck.check = die
            elif word == "heal":
                answer = {"lost": care.heal(host, undo)}
        except (OSError, CommandError, AgentError) as error:
            answer = {"error": str(error)}
        if word == "heal":
            answer["left"] = care.leftovers(host, undo)
        print(json.dumps(answer), flush=True)


main()
