"""Tells the state of a node that a repair may change: category, item, text."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LARGE = 2 << 20
"""Files larger than this are told by size and time of change: hashing them would take too long."""

SYSCTLS = ("kernel", "vm", "fs", "net/core", "net/ipv4", "net/netfilter", "user")
VOLATILE = re.compile(
    r"^(kernel/(random/|ns_last_pid|pty/nr|perf_event_max_sample|tainted|keys/|seccomp/)"
    r"|fs/(dentry-state|inode-|file-nr|quota/|binfmt_misc/|aio-nr|epoll|fanotify/|verity/)"
    r"|net/netfilter/nf_conntrack_count|net/ipv4/(route/|neigh/|tcp_fastopen_key)"
    r"|net/ipv4/conf/(?!(all|default|lan)/)"
    r"|vm/(user|admin)_reserve_kbytes$)"  # of the memory that is free at that moment of a boot
)
UNREAD = ("stat_refresh", "compact_memory", "drop_caches", "route", "neigh", "random")
"""Names that are not even read: reading some does something, and none tells of a change."""

OWN = "groundfault"
TOOLS: dict[str, str] = {}
"""Which commands work: this program runs once, and ends."""

FREE = ("/home/oncall", "/opt/groundfault", "/etc/groundfault")
PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/lib/systemd/system", "/usr/lib/postgresql", "/usr/libexec", "/boot")
ACCOUNTS = ("passwd", "group", "shadow", "gshadow")


def said(*argv: str, ended: tuple[int, ...] = (0,)) -> list[str]:
    """What a command printed, by lines; none where it does not work, which is told of the tool."""
    TOOLS[argv[0]] = "works"
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)
        if done.returncode not in ended:
            done.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        TOOLS[argv[0]] = f"broken: {error}"
        return []
    return done.stdout.splitlines()


def text_of(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def packages() -> Iterator[tuple[str, str]]:
    for line in said("dpkg-query", "-W", "-f", "${Package}:${Architecture}\t${Version} ${db:Status-Status}\n"):
        name, _, state = line.partition("\t")
        yield name, state


def units() -> Iterator[tuple[str, str]]:
    """Units that are not inactive, and how they are."""
    kinds = "--type=service,socket,timer,path,mount,swap,target"
    for line in said("systemctl", "list-units", "--all", "--plain", "--no-legend", "--full", kinds):
        name, _, active, *_ = line.split()
        if active != "inactive":
            yield name, active


def owner(found: os.stat_result) -> str:
    return f"{found.st_uid}:{found.st_gid} {stat.S_IMODE(found.st_mode):o}"


def kind(path: str, found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return f"link to {os.readlink(path)}"  # noqa: PTH115
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    return "file" if stat.S_ISREG(found.st_mode) else "special"


def content(path: str, found: os.stat_result) -> str:
    if found.st_size > LARGE:
        return f"{found.st_size} bytes of {found.st_mtime_ns}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return hashlib.blake2b(os.read(fd, LARGE), digest_size=8).hexdigest()
        finally:
            os.close(fd)
    except OSError as error:
        return f"unreadable: {os.strerror(error.errno or 0)}"


def files(trees: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Files and directories below `trees`, but for those that are a solver's, the lab's, or made by themselves:
    owner, mode and kind of each, and what is in the files.
    """
    made, inside = {}, {}
    for path, found in below_all(trees):
        made[path] = f"{owner(found)} {kind(path, found)}"
        if stat.S_ISREG(found.st_mode):
            inside[path] = content(path, found)
    return made, inside


def below_all(trees: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    for tree in trees:
        root = os.path.realpath(tree)
        if not os.path.isdir(root):  # noqa: PTH112
            continue
        device = os.lstat(root).st_dev
        for where, below, names in os.walk(root):
            below[:] = [b for b in below if f"{where}/{b}" not in FREE and b != "__pycache__"]
            below[:] = [b for b in below if os.lstat(f"{where}/{b}").st_dev == device]
            for name in (*names, *below):
                path = f"{where}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    yield path, os.lstat(path)


def programs(since: str) -> Iterator[tuple[str, str]]:
    """What was changed among programs and units of packages after the node was made."""
    made = os.stat(since).st_ctime  # noqa: PTH116
    for root in PROGRAMS:
        for where, _, _ in os.walk(root):
            with os.scandir(where) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if found.st_ctime > made and not stat.S_ISDIR(found.st_mode):
                        yield entry.path, f"{owner(found)} {found.st_size} bytes of {found.st_ctime_ns}"


def accounts() -> Iterator[tuple[str, str]]:
    for kind in ACCOUNTS:
        for line in text_of(f"/etc/{kind}").splitlines():
            name, _, rest = line.partition(":")
            if not (name == "oncall" and kind == "shadow"):
                yield (
                    f"{kind} {name}",
                    hashlib.blake2b(rest.encode(), digest_size=8).hexdigest() if "shadow" in kind else rest,
                )


def sysctls() -> dict[str, str]:
    """Read by grep, which an emulated node does many times faster than an interpreter."""
    skipped = [word for name in UNREAD for word in (f"--exclude={name}", f"--exclude-dir={name}")]
    places = [f"/proc/sys/{place}" for place in SYSCTLS]
    found: dict[str, str] = {}
    for line in said("grep", "-rsH", *skipped, "", *places, ended=(0, 2)):  # 2: some may only be written
        path, _, value = line.removeprefix("/proc/sys/").partition(":")
        if not VOLATILE.match(path):
            name = path.replace("/", ".")
            found[name] = " ".join((found.get(name, "") + " " + value).split())
    return found


def firewall() -> Iterator[tuple[str, str]]:
    """Tables of netfilter but those of the lab, and whether the old ones are there."""
    name = ""
    found: dict[str, str] = {}
    for line in said("nft", "-s", "list", "ruleset"):
        if line.startswith("table "):
            name = line.removesuffix("{").strip().removeprefix("table ")
        found[name] = f"{found.get(name, '')}{' '.join(line.split())}; "
    yield from ((n, t) for n, t in found.items() if OWN not in n)
    for family in ("ip", "ip6"):
        for table in text_of(f"/proc/net/{family}_tables_names").split():
            yield f"{family}_tables {table}", "there"


def mounts() -> Iterator[tuple[str, str]]:
    """Without what a file system that stopped says of itself: that is damage and no change."""
    for line in text_of("/proc/self/mounts").splitlines():
        source, where, kind, options, *_ = line.split()
        if kind not in ("tmpfs", "autofs", "ramfs", "binfmt_misc", "nsfs", "fuse.portal") and OWN not in line:
            kept = [o for o in options.split(",") if o not in ("rw", "ro", "emergency_ro", "shutdown")]
            yield where, f"{source} {kind} {','.join(kept)}"


def shaped() -> bool:
    """Whether the lab shapes traffic here: then the qdiscs are its own."""
    return any(OWN in path.name for path in Path("/run/groundfault").rglob("*") if path.suffix == ".json")


def network() -> Iterator[tuple[str, str]]:
    for at in sorted(Path("/sys/class/net").iterdir()):
        up = int((at / "flags").read_text(), 16) & 1
        yield f"{at.name}", f"{'up' if up else 'down'} mtu {(at / 'mtu').read_text().strip()}"
    for line in said("ip", "-o", "addr", "show"):
        fields = line.split()
        yield f"{fields[1]} {fields[2]} {fields[3]}", "there"
    for line in said("ip", "route", "show"):
        yield f"route {line.split()[0]}", line.strip()
    for line in said("ip", "rule", "show"):
        yield f"rule {line.strip()}", "there"
    if not shaped():
        for line in said("tc", "qdisc", "show"):
            fields = line.split()
            if fields[1] not in ("noqueue", "pfifo_fast", "fq_codel", "mq") or fields[2] != "0:":
                yield f"{fields[fields.index('dev') + 1]} qdisc {fields[1]}", " ".join(fields[3:])


def listeners() -> Iterator[tuple[str, str]]:
    for line in said("ss", "-Hltn"):
        yield f"tcp {line.split()[3]}", "listens"


def kernel() -> Iterator[tuple[str, str]]:
    uname = os.uname()
    yield from (("release", uname.release), ("host name", uname.nodename))
    yield "command line", text_of("/proc/cmdline").strip()
    for line in said("dmsetup", "info", "-c", "--noheadings", "-o", "name"):
        if OWN not in line and "No devices" not in line:
            yield f"device-mapper {line.strip()}", "there"


def main() -> None:
    given = json.loads(sys.argv[1])
    made, inside = files(given["watched"])
    state = {
        "package": dict(packages()),
        "unit": dict(units()),
        "file": made,
        "content": inside,
        "program": dict(programs(given["since"])),
        "account": dict(accounts()),
        "sysctl": sysctls(),
        "firewall": dict(firewall()),
        "mount": dict(mounts()),
        "interface": dict(network()),
        "listener": dict(listeners()),
        "kernel": dict(kernel()),
    }
    print(json.dumps({**state, "tool": TOOLS}))


if __name__ == "__main__":
    main()
