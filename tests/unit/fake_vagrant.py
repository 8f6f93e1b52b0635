"""A `vagrant` on the PATH that answers with what the real one printed, and machines that are SSH servers here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sshd import SshServer

PROGRAM = """#!{python}
import fcntl, json, os, sys
from pathlib import Path

world = Path({world!r})
held = open(str(world) + ".lock", "w")
fcntl.flock(held, fcntl.LOCK_EX)  # several are asked at once
state = json.loads(world.read_text())
argv = sys.argv[1:]
machines = state["machines"]
kept = {{k: v for k, v in os.environ.items() if k.startswith(("VAGRANT_", "GROUNDFAULT_"))}}
state["calls"].append(" ".join(argv))
state["environment"] = kept
here = Path(kept.get("VAGRANT_CWD", "/nonexistent"))
error = next((text for command, text in state["errors"].items() if " ".join(argv).startswith(command)), "")
names = [word for word in argv if word in machines] or list(machines)

def ids(name, value):
    file = here / ".vagrant" / "machines" / name / kept["VAGRANT_DEFAULT_PROVIDER"] / "id"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value)

if error:
    pass
elif argv[:2] == ["plugin", "list"]:
    print("\\n".join(state["plugins"]) or "No plugins installed.")
elif argv[0] == "status":
    for name in machines:
        print(f"1796036077,{{name}},metadata,provider,libvirt")
        print(f"1796036077,{{name}},state,{{machines[name]['state']}}")
        print(f"1796036077,{{name}},state-human-short,some\\\\nwords")
elif argv[0] == "up":
    for name in names:
        if machines[name]["state"] == "not_created":
            state["made"] += 1
            ids(name, f"id-{{state['made']}}")
        machines[name]["state"] = "running"
elif argv[0] == "halt":
    if "--force" in argv and kept.get("GROUNDFAULT_HALT_S") != "0":  # seen with vagrant-libvirt 0.11.2
        sys.exit("wait_for.rb:9: The specified wait_for timeout (59.96 seconds) was exceeded")
    for name in names:
        machines[name]["state"] = "shutoff"
elif argv[0] == "destroy":
    for name in names:
        machines[name]["state"] = "not_created"
elif argv[:2] == ["snapshot", "restore"]:
    for name in names:
        machines[name]["state"] = "running"
elif argv[0] == "ssh-config":
    one = machines[argv[1]]
    print(f"Host {{argv[1]}}\\n  HostName {{one['host']}}\\n  User root\\n  Port {{one['port']}}")
    print("  UserKnownHostsFile /dev/null\\n  StrictHostKeyChecking no\\n  PasswordAuthentication no")
    print(f"  IdentityFile {{one['key']}}\\n  IdentitiesOnly yes\\n  LogLevel FATAL\\n")
world.write_text(json.dumps(state))
if error:
    sys.exit(error)
"""


@dataclass
class FakeVagrant:
    """What the fake program knows and was asked. `names`: what each machine calls itself."""

    file: Path
    servers: dict[str, SshServer]
    names: dict[str, str] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def change(self, **changes: Any) -> None:
        self.file.write_text(json.dumps(self.read() | changes))

    def calls(self) -> list[str]:
        """What was asked since the last time."""
        said: list[str] = self.read()["calls"]
        self.change(calls=[])
        return said

    def move(self, name: str, **changes: Any) -> None:
        """A machine is elsewhere, or in another state."""
        state = self.read()
        state["machines"][name] |= changes
        self.change(machines=state["machines"])

    def lead_to(self, name: str, server: SshServer) -> None:
        """A machine is reached at that server from now on."""
        self.move(name, port=server.port, key=str(server.key_file))


@contextmanager
def fake_vagrant(
    directory: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = ("w1", "w2")
) -> Iterator[FakeVagrant]:
    """Put it on the PATH, with machines that are not made yet."""
    world = FakeVagrant(directory / "world.json", {}, {name: name for name in names})
    with ExitStack() as stack:
        machines = {}
        for name in names:
            (directory / name).mkdir()

            def run(argv: list[str], stdin: bytes, name: str = name) -> tuple[int, bytes, bytes]:
                return 0, world.names[name].encode() + b"\n", b""

            server = world.servers[name] = stack.enter_context(SshServer(directory / name, run))
            machines[name] = {"state": "not_created", "host": "127.0.0.1", "port": server.port,
                              "key": str(server.key_file)}  # fmt: skip
        world.file.write_text(
            json.dumps({"machines": machines, "plugins": ["vagrant-libvirt (0.11.2, system)"], "errors": {},
                        "calls": [], "made": 0})
        )  # fmt: skip
        program = directory / "bin" / "vagrant"
        program.parent.mkdir()
        program.write_text(PROGRAM.format(python=sys.executable, world=str(world.file)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        for name in ("VAGRANT_DEFAULT_PROVIDER", "GROUNDFAULT_BOX", "GROUNDFAULT_LIBVIRT_DRIVER"):
            monkeypatch.delenv(name, raising=False)
        yield world
