"""The playbooks on machines that are directories of this one: real Ansible, real tasks, a systemctl and an agent
that are toys. Every path comes from the payload, so a payload whose paths lie below a directory is enough.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.lab import footprint as at
from labctl.lab.payload import FILE, write_payload
from labctl.pki import LabAuthority

ANSIBLE = Path(__file__).parents[2] / "ansible"
PYTHON, ARCH = f"{sys.version_info[0]}.{sys.version_info[1]}", os.uname().machine
MUTE = "mute"
"""The version of an agent that never answers."""

_RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)
_FATAL = re.compile(r"^(?:fatal|failed): \[([^\]]+)\][^\n]*? => (\{.*?^\}|\{.*?\}$)", re.M | re.S)

_SYSTEMCTL = """#!/bin/sh
# usage as systemctl's; what a unit is, is a file in $TOY/units.
echo "$*" >>"$TOY/systemctl.log"
verb=$1 unit=$(basename "${2:-none}")
is() { [ -e "$TOY/units/$1.$unit" ]; }
case $verb in
  show)
    loaded=not-found active=inactive
    for file in "$TOY"/*/etc/systemd/system/"$unit"; do [ -e "$file" ] && loaded=loaded; done
    is active && active=active
    echo "LoadState=$loaded"
    echo "ActiveState=$active" ;;
  is-enabled) if is enabled; then echo enabled; else echo disabled; exit 1; fi ;;
  enable) touch "$TOY/units/enabled.$unit" ;;
  disable) rm -f "$TOY/units/enabled.$unit" ;;
  start | restart) touch "$TOY/units/active.$unit" ;;
  stop) rm -f "$TOY/units/active.$unit" ;;
esac
"""

_AGENT = """#!/bin/sh
# usage: node-agent call METHOD --node NAME
here=$(dirname "$0")/.. request=$(cat)
[ "$(cat "$here/lib/version")" = mute ] && { echo "the agent does not answer" >&2; exit 70; }
disks=$here/../../var/lib/groundfault/disks
case "$2 $request" in
  *undo*) rm -f "$disks"/*; echo '{"reply":{"changed":true}}' ;;
  PrepareDisk*'"size_mib": 1,'* | PrepareDisk*'"size_mib": 1}'*)
    echo '{"error":{"code":"refused","message":"size_mib: 1 MiB is too small for ext4"}}'; exit 1 ;;
  PrepareDisk*)
    if [ -e "$disks/spare.json" ]; then echo '{"reply":{}}'
    else mkdir -p "$disks"; touch "$disks/spare.json"; echo '{"reply":{"changed":true}}'; fi ;;
  *) echo '{"reply":{}}' ;;
esac
"""


def archive(path: Path, version: str) -> Path:
    """A bundle of this version, as :func:`labctl.lab.bundle.build_bundle` makes one."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text, mode in (
            ("bin/node-agent", _AGENT, 0o755),
            ("lib/version", version, 0o644),
            (f"lib/{version}.py", version, 0o644),
            (f"lib/node_agent/systemd/{at.UNIT}", f"[Unit] # {version}\n", 0o644),
            ("key", f"{version}\n", 0o644),
        ):
            entry = tarfile.TarInfo(f"{at.PROGRAM}/{name}".lstrip("/"))
            entry.size, entry.mode = len(text.encode()), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


@dataclass
class Machine:
    """A machine in `root`, and the payload for it in `payload`."""

    name: str
    root: Path
    payload: Path
    variables: dict[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, text: str = "") -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def tree(self) -> dict[str, str]:
        """Every path with its mode, and the text of files; certificates are never the same."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name, mode = str(path.relative_to(self.root)), f"{path.stat().st_mode & 0o777:o}"
            told = path.read_text() if path.is_file() and "tls" not in path.parts else ""
            found[name] = f"{mode} {told}"
        return found

    def says(self, **fields: object) -> None:
        """Have the payload say something else."""
        data = json.loads((self.payload / FILE).read_text())
        (self.payload / FILE).write_text(json.dumps({**data, **fields}))

    def finds(self, **fields: object) -> None:
        """Have a look at it find these, whatever is there."""
        look = self.payload / "look.py"
        look.write_text(look.read_text().replace("\n}))\n", f"\n}} | {fields!r}))\n"))


@dataclass
class Ran:
    """What a playbook did."""

    status: int
    text: str

    @property
    def changed(self) -> Mapping[str, int]:
        return {name: int(changed) for name, _, changed, _, _ in _RECAP.findall(self.text)}

    @property
    def failed(self) -> frozenset[str]:
        return frozenset(name for name, *_, failed in _RECAP.findall(self.text) if int(failed))

    def said(self, name: str) -> str:
        """Why a machine failed."""
        found = [json.loads(text)["msg"] for who, text in _FATAL.findall(self.text) if who == name]
        assert found, f"{name} did not fail\n{self.text}"
        return str(found[-1])


class Site:
    """Machines, and Ansible for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machines: dict[str, Machine] = {}
        self.authority = LabAuthority.create(directory / "pki", "rack")
        (directory / "units").mkdir()
        (directory / "bin").mkdir()
        (directory / "bin" / "systemctl").write_text(_SYSTEMCTL)
        (directory / "bin" / "systemctl").chmod(0o755)

    def machine(self, name: str, version: str = "one", **variables: Any) -> Machine:
        """One more, without an agent, and a payload for it with this version of the agent."""
        root = self.directory / name
        for folder in ("opt", "etc/systemd/system", "var/lib", "run/systemd/system"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        made = Machine(name, root, self.directory / f"payload-{name}", variables)
        self.machines[name] = made
        self.pack(made, version)
        return made

    def pack(self, machine: Machine, version: str) -> None:
        """Make its payload, anew, with this version."""
        bundle = archive(self.directory / f"{version}.tar.gz", version)
        write_payload(
            machine.payload, self.authority, {(PYTHON, ARCH): (version, bundle)}, [machine.name],
            lambda name: self.authority.node_files(name) | {at.REVOKED: b""},
        )  # fmt: skip
        # A unit of its own, and of that version: the toy systemctl serves all machines.
        unit, unit_text = f"{machine.name}.service", f"[Unit] # {version}\n"
        for file in (FILE, "look.py"):
            text = (machine.payload / file).read_text().replace("/usr/bin/python3", sys.executable)
            text = re.sub(r"(?<=[\"'])/(opt|etc|var|run)\b", rf"{machine.root}/\1", text)
            (machine.payload / file).write_text(text.replace(f"/system/{at.UNIT}", f"/system/{unit}"))
        paths = json.loads((machine.payload / FILE).read_text())["paths"]
        machine.says(unit=unit, unit_text=unit_text, paths={**paths, "root": str(machine.root)})
        packed = machine.payload / "nodes" / f"{machine.name}.tar"
        with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as old, tarfile.open(packed, "w") as new:
            for entry in old:
                content = old.extractfile(entry) if entry.isfile() else None
                if entry.name == at.UNIT_FILE[1:]:
                    entry.name, entry.size = f"etc/systemd/system/{unit}", len(unit_text)
                    content = io.BytesIO(unit_text.encode())
                new.addfile(entry, content)

    def active(self, machine: Machine) -> bool:
        return (self.directory / "units" / f"active.{machine.name}.service").exists()

    def play(self, playbook: str, *options: str, only: str = "all") -> Ran:
        """Run a playbook on them all at once."""
        hosts = {
            name: {"groundfault_agent_payload": str(one.payload), **one.variables}
            for name, one in self.machines.items()
        }
        everywhere = {"ansible_connection": "local", "ansible_become": False,
                      "ansible_python_interpreter": sys.executable}  # fmt: skip
        inventory = self.directory / "inventory.yml"
        inventory.write_text(json.dumps({"groundfault": {"hosts": hosts, "vars": everywhere}}))
        program = Path(sys.executable).with_name("ansible-playbook")
        command = (str(program), "-i", str(inventory), "--forks", "8", "--limit", only)
        env = {
            **os.environ,
            "TOY": str(self.directory),
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "ansible"),
            "ANSIBLE_REMOTE_TEMP": str(self.directory / "ansible"),
        }
        argv = (*command, *options, str(ANSIBLE / playbook))
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=300)
        return Ran(done.returncode, done.stdout + done.stderr)
