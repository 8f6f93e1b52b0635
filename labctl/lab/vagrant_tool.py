"""Running `vagrant`, and reading what it says.

Interfaces: the machine-readable output of `vagrant status`, the OpenSSH configuration that `vagrant ssh-config`
prints, and the list that `vagrant plugin list` prints (Vagrant 2.3).
"""

from __future__ import annotations

import ipaddress
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from labctl.errors import LabError, UnsupportedError, UsageError
from labctl.lab.accelerator import accelerator_here
from labctl.lab.model import LabOptions, Login
from labctl.lab.tools import find, run
from labctl.progress import Progress

Backend = Literal["libvirt", "virtualbox"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
CHOICE = "VAGRANT_DEFAULT_PROVIDER"
"""The variable by which Vagrant itself is told which provider to use."""

ASK_S = 120.0
_OURS = "GROUNDFAULT_"
_REMEDY: Mapping[Backend, str] = {
    "libvirt": "apt-get install vagrant-libvirt libvirt-daemon-system",
    "virtualbox": "install VirtualBox",
}


@dataclass(frozen=True)
class Vagrant:
    """The Vagrant environment in `directory`, with one of the providers."""

    directory: Path
    backend: Backend

    def ask(self, *argv: str, what: str, timeout_s: float = ASK_S, **chosen: str) -> str:
        """Run a command to its end, with settings of the Vagrantfile for this time. Raises :class:`LabError` with
        what it said.
        """
        _need_vagrant()
        env = environment(self.directory, self.backend) | {f"{_OURS}{name}": word for name, word in chosen.items()}
        return run(("vagrant", *argv), what, timeout=timeout_s, env=env)

    def halt(self, *names: str, force: bool, what: str, timeout_s: float) -> None:
        """Shut machines down in good order, or pull their plugs.

        vagrant-libvirt (0.11.2) has a machine shut down in any case, and fails where that takes longer than its
        patience, also by force. So then it is given none.
        """
        if force:
            self.ask("halt", "--force", *names, what=what, timeout_s=timeout_s, HALT_S="0")
        else:
            self.ask("halt", *names, what=what, timeout_s=timeout_s)

    def states(self) -> dict[str, str]:
        """The state of each machine: running, shutoff, poweroff, saved, not_created …"""
        return states_in(self.ask("status", "--machine-readable", what="asking Vagrant for its machines"))

    def login(self, name: str) -> Login:
        """How one logs in on a running machine now: it may have another address after each start."""
        return login_in(self.ask("ssh-config", name, what=f"asking Vagrant for the way to {name}"), name)

    def machine_id(self, name: str) -> str:
        """Vagrant's id of a machine, another one for each that is made; empty where it is not made."""
        try:
            return (self.directory / ".vagrant" / "machines" / name / self.backend / "id").read_text().strip()
        except FileNotFoundError:
            return ""


def environment(directory: Path, backend: Backend) -> dict[str, str]:
    """What Vagrant finds its machines by. What would lead it, or the Vagrantfile, elsewhere is left out."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(_OURS) and key not in ("VAGRANT_DOTFILE_PATH", "VAGRANT_VAGRANTFILE", "VAGRANT_LOG")
    }
    kept |= {"VAGRANT_CWD": str(directory), CHOICE: backend, "VAGRANT_CHECKPOINT_DISABLE": "1"}
    return kept | ({"VAGRANT_EXPERIMENTAL": "disks"} if backend == "virtualbox" else {})


def choose_backend() -> Backend:
    """Which of Vagrant's providers makes the machines. Raises a LabctlError that says what is missing."""
    _need_vagrant()
    wanted = os.environ.get(CHOICE, "")
    if wanted and wanted not in BACKENDS:
        raise UsageError(f"{CHOICE}: {wanted!r} is not supported", f"allowed are {', '.join(BACKENDS)}")
    there = [one for one in BACKENDS if (not wanted or one == wanted) and _usable(one)]
    if there:
        return there[0]
    if wanted:
        missing = "the plugin vagrant-libvirt" if wanted == "libvirt" else "VBoxManage"
        raise UnsupportedError(f"vagrant cannot use {wanted}: {missing} is missing", _REMEDY[wanted])
    raise UnsupportedError(
        "vagrant has no provider that can be used: neither the plugin vagrant-libvirt nor VirtualBox is there",
        _REMEDY["libvirt"],
    )


def _need_vagrant() -> None:
    if find("vagrant") is None:
        raise LabError("vagrant is not installed", "apt-get install vagrant vagrant-libvirt libvirt-daemon-system")


def _usable(backend: Backend) -> bool:
    if backend == "virtualbox":
        return shutil.which("VBoxManage") is not None
    listed = run(("vagrant", "plugin", "list"), "asking Vagrant for its plugins", timeout=ASK_S)
    return any(line.split(" ")[0] == "vagrant-libvirt" for line in listed.splitlines())


def states_in(text: str) -> dict[str, str]:
    """The states in what `vagrant status --machine-readable` prints: lines of time, machine, kind, value."""
    rows = (line.split(",") for line in text.splitlines())
    return {row[1]: row[3] for row in rows if len(row) > 3 and row[2] == "state"}


def login_in(text: str, name: str) -> Login:
    """The login of one machine in an OpenSSH configuration that Vagrant prints.

    It has no host keys: Vagrant checks none. Raises :class:`LabError` where it cannot lead to the machine.
    """
    import paramiko

    try:
        config = paramiko.SSHConfig.from_text(text)
    except paramiko.ConfigParseError as error:
        raise LabError(f"what vagrant ssh-config says of {name} cannot be understood: {error}") from None
    if name not in config.get_hostnames():
        raise LabError(f"vagrant ssh-config knows nothing of {name}", "does the machine run? labctl status")
    said = config.lookup(name)
    if said.get("proxycommand", "none") != "none":
        raise LabError(f"{name} is reached by ProxyCommand, which cannot be followed", "run labctl on that host")
    keys = [Path(file).expanduser() for file in said.get("identityfile", ())]
    login = Login(
        address=said["hostname"],
        port=int(said.get("port", 22)),
        user=said.get("user", "vagrant"),
        key=next((key for key in keys if key.is_file()), None),
    )
    if is_loopback(login.address) and login.port == 22:
        raise LabError(f"{name}: Vagrant has lost the way to it, and names the SSH server of this machine",
                       f"vagrant reload {name}")  # fmt: skip
    if login.key is None:
        raise LabError(f"{name}: the key that Vagrant names is not there: {' '.join(map(str, keys)) or 'none'}")
    return login


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def box_named(value: str) -> tuple[str, str]:
    """Name and URL of a box from a name, or from a file that `labctl image export` made.

    A file is named by size and age, so that another one is not taken for it. Raises :class:`UsageError`.
    """
    if not value.endswith(".box"):
        return value, ""
    file = Path(value).expanduser().absolute()
    try:
        seen = file.stat()
    except OSError as error:
        raise UsageError(f"GROUNDFAULT_BOX: {value}: {error.strerror}", "a name, or the file of a box") from None
    return f"groundfault-{file.stem}-{seen.st_size}-{int(seen.st_mtime)}", file.as_uri()


def driver_here(progress: Progress) -> str:
    """`qemu` where a trial boot with KVM has failed although /dev/kvm opens: there a guest was seen to read its
    kernel at 60 KiB/s, and no error. "" where nothing is known, and the Vagrantfile decides.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):  # libvirt may all the same
        return ""
    found = accelerator_here(progress)
    return "qemu" if found and found.name == "tcg" else ""


def settings(lab: str, options: LabOptions, agent_ports: Sequence[int], driver: str = "") -> dict[str, str | int]:
    """What the Vagrantfile is to make, by the names of its settings. `driver`: of libvirt, where the user says
    nothing. Raises :class:`UsageError`.
    """
    box, url = box_named(os.environ.get("GROUNDFAULT_BOX", ""))
    driver = os.environ.get("GROUNDFAULT_LIBVIRT_DRIVER", "") or driver
    if driver not in ("", "kvm", "qemu"):
        raise UsageError(f"GROUNDFAULT_LIBVIRT_DRIVER: {driver!r}", "kvm, or qemu for emulation")
    chosen: dict[str, str | int] = {
        "LAB": lab,
        "NODES": options.nodes,
        "MEMORY_MIB": options.memory_mib,
        "CPUS": options.cpus,
        "DATA_MIB": options.data_mib,
        "AGENT_PORTS": ",".join(map(str, agent_ports)),
    }
    optional = {"BOX": box, "BOX_URL": url, "LIBVIRT_DRIVER": driver}
    return chosen | {key: value for key, value in optional.items() if value}
