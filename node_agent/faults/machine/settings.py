"""Which settings a fault may change: those of the kernel, of services, and in files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from node_agent.control_paths import management_links
from node_agent.edits import EditError, apply_edits, digest, set_key
from node_agent.errors import Refusal
from node_agent.host import Reader
from node_agent.scopes import PROTECTED_UNITS
from node_agent.steps.file_edit import FileEdit
from node_agent.steps.sysctl_value import ROOT, Setting, SysctlValue

MAX_BYTES = 1 << 20

_ONE_WAY = (
    "kernel/modules_disabled", "kernel/kexec_load_disabled", "kernel/kexec_load_limit_panic",
    "kernel/kexec_load_limit_reboot", "kernel/unprivileged_bpf_disabled", "kernel/yama/ptrace_scope",
    "kernel/ns_last_pid",
)  # fmt: skip
"""What cannot be set back while the machine runs (Documentation/admin-guide/sysctl, yama.rst)."""
_PROGRAMS = (
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hotplug",
    "kernel/poweroff_cmd",
    "kernel/usermodehelper/",
)
"""Programs that the kernel starts as root, and what they may do."""
_DEEDS = ("vm/drop_caches", "vm/compact_memory", "kernel/sysrq", "kernel/random/", "kernel/hostname")
"""No settings: they do something when they are written, or are a machine's name."""
_CUTS_OFF = re.compile(r"net/ipv[46]/(conf|neigh)/all/|net/ipv[46]/route/flush|net/ipv6/conf/[^/]+/disable_ipv6")
"""Of every interface, so of that of the control traffic; and what takes addresses away that nothing gives back."""
_OF_INTERFACE = re.compile(r"net/(?:ipv4|ipv6|mpls)/(?:conf|neigh)/([^/]+)/")
_ALONG = (
    (re.compile(r"net/ipv4/ip_forward$"), ("net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/accept_redirects")),
    (re.compile(r"vm/dirty_(bytes|ratio)$"), ("vm/dirty_bytes", "vm/dirty_ratio")),
    (
        re.compile(r"vm/dirty_background_(bytes|ratio)$"),
        ("vm/dirty_background_bytes", "vm/dirty_background_ratio"),
    ),
    (re.compile(r"vm/overcommit_(kbytes|ratio)$"), ("vm/overcommit_kbytes", "vm/overcommit_ratio")),
)
"""What the kernel changes along with a setting (ip-sysctl.rst and admin-guide/sysctl/vm.rst)."""

_PROTECTED = re.compile(
    r"/(proc|sys|dev|boot|efi|usr/lib|lib|lib64|usr/bin|usr/sbin|bin|sbin|opt/groundfault|var/lib/groundfault)(/|$)"
    r"|/etc/(ssh|pam\.d|security/access\.conf|sudoers|groundfault|network|netplan|grub\.d|kernel|initramfs-tools)"
    r"|/etc/systemd/network|/(etc|run)/systemd/system/(ssh|groundfault|dbus|systemd-|getty)"
    r"|/etc/(passwd|shadow|group|gshadow|subuid|subgid|fstab|crypttab|nsswitch\.conf|ld\.so|hosts\.allow|hosts\.deny)"
    r"|/etc/default/(grub|ssh)|/var/lib/dpkg|/root/\.ssh|/home/[^/]+/\.ssh|.*groundfault|.*/authorized_keys"
)
"""What people, the agent and the boot need to get in and up."""
_NEVER = re.compile(r"(ssh|sshd|groundfault|dbus|systemd-|init\.scope|-\.slice|getty|user@)")


def find_sysctl(reader: Reader, name: str, value: str) -> SysctlValue:
    """The change of a setting of the kernel. Raises :class:`Refusal`."""
    path = name if "/" in name else name.replace(".", "/")
    if path.startswith("/") or ".." in path.split("/"):
        raise Refusal(f"sysctl: {name!r} is no name", field="sysctl", allowed="such as net.ipv4.tcp_syncookies")
    _refuse_sysctl(reader, path)
    try:
        was = reader.read_text(f"{ROOT}/{path}").rstrip("\n")
    except OSError as error:
        raise Refusal(
            f"sysctl: {path} cannot be read: {error.strerror}", field="sysctl", allowed="a setting of: sysctl -a"
        ) from None
    if not was.strip():
        raise Refusal(f"sysctl: {path} says nothing", field="sysctl", allowed="a setting with a value")
    return SysctlValue(name=path, value=value, was=was, also=tuple(_along(reader, path)))


def _refuse_sysctl(reader: Reader, path: str) -> None:
    def refuse(why: str) -> None:
        raise Refusal(f"sysctl: {path} {why}", field="sysctl", allowed="another setting")

    if path in _ONE_WAY:
        refuse("cannot be set back")
    if path.startswith(_PROGRAMS):
        refuse("names a program that the kernel starts")
    if path.startswith(_DEEDS):
        refuse("is no setting that comes back")
    if _CUTS_OFF.match(path):
        refuse("is also that of the control traffic, or takes addresses away")
    found = _OF_INTERFACE.match(path)
    if found:
        needed = management_links(reader)
        why = next(
            (needed[x.index] for x in reader.routing.links() if x.name == found[1] and x.index in needed), ""
        )
        if why:
            refuse(f"is of an interface that control needs: {why}")


def _along(reader: Reader, path: str) -> Iterator[Setting]:
    for pattern, others in _ALONG:
        for other in others if pattern.match(path) else ():
            for found in reader.glob(f"{ROOT}/{other}"):
                name = found.removeprefix(f"{ROOT}/")
                if name != path:
                    yield Setting(name=name, text=reader.read_text(found).rstrip("\n"))


def find_edit(reader: Reader, path: str, place: tuple[str, str], value: str) -> FileEdit:
    """The change of a key in a file; `place` is its section and the key. Raises :class:`Refusal`."""
    section, key = place
    real = reader.realpath(path)
    if not path.startswith("/"):
        raise Refusal(f"file: {path} is no path", field="file", allowed="a path from / on")
    for one in (path, real):
        if _PROTECTED.match(one):
            raise Refusal(f"file: {one} is never a target", field="file", allowed="a file of a service")
    try:
        there = reader.settings.file(real)
    except OSError as error:
        raise Refusal(f"file: {path}: {error.strerror}", field="file", allowed="a regular file") from None
    why = ""
    if there is None:
        why = "does not exist"
    elif len(there.data) > MAX_BYTES or b"\0" in there.data:
        why = "is no text of up to 1 MiB"
    elif there.links > 1:
        why = "has other names (hard links), and is replaced as a whole"
    if there is None or why:
        raise Refusal(f"file: {path} {why}", field="file", allowed="a configuration file")
    try:
        edits = set_key(there.data, key, value, section)
    except EditError as error:
        field = "section" if section else "key"
        raise Refusal(f"{field}: {error}", field=field, allowed="a key in a line of its own") from None
    after = apply_edits(there.data, edits)
    return FileEdit(path=real, tag="", edits=edits, before=digest(there.data), after=digest(after),
                    mtime_ns=there.mtime_ns)  # fmt: skip


def find_unit(reader: Reader, unit: str, field: str) -> str:
    """The full name of a service. Raises :class:`Refusal`."""
    name = unit if "." in unit else f"{unit}.service"
    if name in PROTECTED_UNITS or _NEVER.match(name):
        raise Refusal(f"{field}: {name} is never a target", field=field, allowed="a service control does not need")
    if not name.endswith(".service"):
        raise Refusal(f"{field}: {name} is no service", field=field, allowed="a service")
    if reader.services.state(name).load != "loaded":
        raise Refusal(f"{field}: systemd knows no {name}", field=field, allowed="a service of this node")
    return name
