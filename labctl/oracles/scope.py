"""What else was changed: the state of the nodes before and after, and what of the difference a repair may do.

A repair that stops the monitoring, drops the firewall, edits the service's code or leaves a cron job behind may
make clients happy and is none. Everything watched has to be as it was, but for what the problem permits.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib import resources

from labctl.errors import LabError
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

State = Mapping[str, Mapping[str, str]]
"""What there is on a node: category, item, text."""

TREES = ("/etc", "/opt", "/usr/local", "/root", "/home", "/var/spool/cron", "/lib/systemd/system")
COME_AND_GO = (
    "unit user@*", "unit user-runtime-dir@*", "unit session-*", "unit systemd-tmpfiles-clean.*", "unit run-*",
    "unit systemd-hostnamed.service", "unit systemd-timedated.service", "unit systemd-localed.service",
    "unit getty@*", "unit serial-getty@*", "unit *-daily*", "unit dpkg-db-backup*", "unit fstrim*",
    "unit e2scrub*", "unit ssh@*", "unit sshd@*", "unit systemd-udev*", "unit modprobe@*",
    "file /root/.cache/**", "file /home/*/.cache/**", "file /root/.bash_history", "file /home/*/.bash_history",
    "file /etc/.pwd.lock", "file /etc/ld.so.cache",
)  # fmt: skip
"""What changes on a node that nobody touches, as `category item`."""

_MOST_TOLD = 12


class Scope(Oracle):
    """Nothing changed beside what `permitted` names: globs of `node:category item`, `*` crossing slashes.

    `watched` are directories whose files count, by content, owner and mode.
    """

    permitted: tuple[str, ...] = ()
    watched: tuple[str, ...] = TREES

    @property
    def name(self) -> str:
        return "scope"

    @property
    def aspect(self) -> Aspect:
        return "scope"

    def look(self, lab: Lookout) -> Seen:
        script = resources.files("labctl.oracles").joinpath("scope.sh").read_text()
        found = {}
        for node in lab.nodes:
            done = lab.sh(node, f"set -- {' '.join(self.watched)}\n{script}", timeout_s=180.0)
            if done.status:
                raise LabError(f"{node}: its state could not be read: {done.stderr.strip() or done.status}")
            found[node] = parse(done.stdout)
        return found

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


def parse(text: str) -> dict[str, dict[str, str]]:
    """The script's output: a line `## CATEGORY`, then lines `ITEM<tab>TEXT`."""
    found: dict[str, dict[str, str]] = {}
    category = ""
    for line in text.splitlines():
        if line.startswith("## "):
            category = line[3:]
            found[category] = {}
        elif line:
            item, _, rest = line.partition("\t")
            if not any(fnmatchcase(f"{category} {item}", p) for p in COME_AND_GO):
                found[category][item] = rest
    return found


def differences(before: State, after: State) -> list[str]:
    """`category item was … is …` for each item that differs; one that is not there is "nothing"."""
    found = []
    for category in sorted({*before, *after}):
        old, new = before.get(category, {}), after.get(category, {})
        for item in sorted({*old, *new}):
            was, now = old.get(item, "nothing"), new.get(item, "nothing")
            if was != now:
                found.append(f"{category} {item} was {was}, is {now}")
    return found
