"""What else was changed: the state of the nodes before and after, and what of the difference a repair may do.

A repair that stops the monitoring, drops the firewall, edits the service's code or leaves a cron job behind may
make clients happy and is none. Everything watched has to be as it was, but for what the problem permits.

Damage is told apart from change: a unit that has failed was stopped by nobody, a file system that turned read-only
was remounted by nobody, and a port that is not listened on belongs to a service that is down. Other oracles see
those. What the lab itself has on a node bears its name, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from labctl.oracles.nodes import on_each, python
from labctl.oracles.nodes import watched as nodes_of
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

State = Mapping[str, Mapping[str, str]]
"""What there is on a node: category, item, text."""

TREES = (
    "/etc", "/opt", "/usr/local", "/root", "/home", "/var/spool/cron", "/run/systemd/system",
    "/run/systemd/system.control", "/var/lib/postgresql", "/var/lib/systemd/linger",
)  # fmt: skip
MADE = "/etc/ssh/ssh_host_ed25519_key"
"""A file that is as old as the node: programs that changed later were changed by somebody."""

COME_AND_GO = (
    "unit user@*", "unit user-runtime-dir@*", "unit session-*", "unit systemd-tmpfiles-clean.*", "unit run-*",
    "unit systemd-hostnamed.*", "unit systemd-timedated.*", "unit systemd-localed.*", "unit getty*",
    "unit serial-getty*", "unit apt-daily*", "unit dpkg-db-backup*", "unit fstrim*", "unit logrotate*",
    "unit e2scrub*", "unit ssh@*", "unit sshd@*", "unit systemd-udev*", "unit modprobe@*", "unit *groundfault*",
    "unit *.mount", "unit systemd-fsck*", "unit systemd-journal*", "unit blockdev@*", "unit *.target",
    "unit man-db*",
    "file /root/.cache*", "file /home/*/.cache*", "file /root/.bash_history", "file /home/*/.bash_history",
    "file /home/oncall", "file /var/lib/postgresql/.psql_history", "file /var/lib/postgresql/.bash_history",
    "file /etc/.pwd.lock", "file /etc/ld.so.cache", "file /etc/adjtime", "file /etc/mtab",
    "file /etc/passwd", "file /etc/passwd-", "file /etc/group", "file /etc/group-", "file /etc/shadow",
    "file /etc/shadow-", "file /etc/gshadow", "file /etc/gshadow-", "file /etc/subuid*", "file /etc/subgid*",
)  # fmt: skip
"""What changes on a node that nobody touches, or is told otherwise, as `category item`. Accounts have a category;
mounts have one, too.
"""

_MOST_TOLD = 20
_UNSETTLED = frozenset({"failed", "activating", "deactivating", "reloading", "refreshing", "maintenance"})


class Scope(Oracle):
    """Nothing changed beside what `permitted` names: globs of `node:category item`, `*` crossing slashes.

    Categories: `package`, `unit`, `file` (owner, mode and kind, below `watched`), `content` (of those files),
    `program` (of packages), `account`, `sysctl`, `firewall`, `mount`, `interface` (state, MTU, addresses, routes,
    queueing), `listener`, `kernel`, `tool` (what shows all that). Nodes of `without` are left out.
    """

    permitted: tuple[str, ...] = ()
    watched: tuple[str, ...] = TREES
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "scope"

    @property
    def aspect(self) -> Aspect:
        return "scope"

    def look(self, lab: Lookout) -> Seen:
        given = {"watched": list(self.watched), "since": MADE}

        def one(node: str) -> State:
            return tidy(python(lab, node, "scope", given, timeout_s=180.0))

        return on_each(nodes_of(lab, self.without), one)

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        changes = [
            f"{node}:{change}"
            for node in sorted({*before, *after})
            for change in differences(before.get(node, {}), after.get(node, {}))
        ]
        foreign = [c for c in changes if not any(fnmatchcase(c.split(" was ")[0], p) for p in self.permitted)]
        if not foreign:
            return self.found(Outcome.PASS, changes=len(changes))
        told = foreign[:_MOST_TOLD]
        more = [f"and {len(foreign) - len(told)} more"] if len(foreign) > len(told) else []
        return self.found(Outcome.FAIL, *told, *more, changes=len(changes), foreign=len(foreign))


def tidy(state: State) -> dict[str, dict[str, str]]:
    """Without what comes and goes by itself."""
    found = {}
    for category, items in state.items():
        named = "file" if category == "content" else category
        found[category] = {i: text for i, text in items.items() if not _comes_and_goes(f"{named} {i}")}
    return found


def _comes_and_goes(thing: str) -> bool:
    return any(fnmatchcase(thing, pattern) for pattern in COME_AND_GO)


def differences(before: State, after: State) -> list[str]:
    """`category item was … is …` for each item that differs; one that is not there is "nothing"."""
    found = []
    for category in sorted({*before, *after}):
        old, new = before.get(category, {}), after.get(category, {})
        for item in sorted({*old, *new}):
            was, now = old.get(item, "nothing"), new.get(item, "nothing")
            if was != now and not _damage(category, was, now):
                found.append(f"{category} {item} was {was}, is {now}")
    return found


def _damage(category: str, was: str, now: str) -> bool:
    """Whether a difference is what breaks by itself, and nobody's doing."""
    if category == "unit":
        return was in _UNSETTLED or now in _UNSETTLED
    return category == "listener" and now == "nothing"
