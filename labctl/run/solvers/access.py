"""The on-call account of the nodes: opened for a solver with a key of its own, closed when its time is over.

The key lies where nothing else is watched, so that opening and closing changes none of what oracles compare. Nodes
run sshd without PAM and have no session manager: whatever a login started is in sshd's control group still.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from labctl.errors import LabctlError, LabError
from labctl.run.oracle import Lookout
from labctl.run.solvers.directory import ACCOUNT

KEYS = "/var/lib/oncall/keys"
_CONFIG = "/etc/ssh/sshd_config.d/oncall.conf"
_RULES = "/etc/sudoers.d/oncall-root"

PREPARE = f"""set -eu
id {ACCOUNT} >/dev/null
mkdir -p {KEYS.rpartition("/")[0]}
rm -f {KEYS}
printf 'Match User {ACCOUNT}\\n  AuthorizedKeysFile {KEYS}\\n' > {_CONFIG}.new
if cmp -s {_CONFIG}.new {_CONFIG}; then rm {_CONFIG}.new; exit 0; fi
mv {_CONFIG}.new {_CONFIG}
sshd -t
systemctl reload ssh.service
"""
"""Nothing of it changes while an episode runs: the key is all that comes and goes."""

BECOME_ROOT = f"""set -eu
umask 337
echo '{ACCOUNT} ALL=(ALL:ALL) NOPASSWD: ALL' > {_RULES}.new
visudo -cqf {_RULES}.new
mv {_RULES}.new {_RULES}
"""

CLOSE = f"""set -u
rm -f {KEYS}
uid=$(id -u {ACCOUNT}) || exit 0
mine() {{  # processes of the account, what they started, and orphans of logins
  ps -eo pid=,ppid=,uid=,cgroup:300=,comm= | awk -v uid="$uid" '
    {{ pid[NR] = $1; up[$1] = $2; owner[$1] = $3; group[$1] = $4; name[$1] = $5 }}
    END {{
      for (n = 1; n <= NR; n++) {{
        p = pid[n]; hit = 0
        for (q = p; q > 1; q = up[q]) if (owner[q] == uid) hit = 1
        if (up[p] == 1 && group[p] ~ /ssh(@[^\\/]*)?[.]service/ && name[p] !~ /^sshd/) hit = 1
        if (hit) print p
      }}
    }}'
}}
tries=0
while pids=$(mine); [ -n "$pids" ]; do
  kill -KILL $pids 2>/dev/null
  tries=$((tries + 1))
  [ $tries -lt 50 ] || {{ echo "still there: $pids" >&2; exit 1; }}
  sleep 0.1
done
"""
"""Ends what the account started, and what that started as somebody else. Services that it restarted go on."""


class Access:
    """The account on all nodes of a lab. `root`: it may do everything as root."""

    def __init__(self, lab: Lookout, *, root: bool) -> None:
        self._lab, self._root = lab, root
        self._key = ""

    def prepare(self) -> None:
        """Before the gate, so that what changes here is there when oracles look first."""
        self._everywhere(PREPARE)
        if self._root:
            self._everywhere(BECOME_ROOT)

    def open(self, public_key: str) -> None:
        """Let whoever has the key in. A node that does not answer is one that nobody gets in to: see `reopen`."""
        self._key = public_key
        self._on_each(self._open)

    def reopen(self, node: str) -> None:
        """A node has booted: let whoever has the key in, where that is to be."""
        if self._key:
            self._open(node)

    def _open(self, node: str) -> str:
        where, key = KEYS.rpartition("/")[0], shlex.quote(self._key)
        script = f"printf '%s\\n' {key} > {KEYS} && chmod 755 {where} && chmod 644 {KEYS} && sync -f {KEYS}"
        with contextlib.suppress(LabctlError):
            self._run(node, script)
        return ""

    def close(self) -> tuple[str, ...]:
        """Let nobody in any more, and end what runs; which nodes could not be asked, and why."""

        def ask(node: str) -> str:
            try:
                self._run(node, CLOSE)
            except LabctlError as error:
                return error.message
            return ""

        self._key = ""
        return tuple(text for text in self._on_each(ask) if text)

    def _everywhere(self, script: str) -> None:
        self._on_each(lambda node: self._run(node, script))

    def _run(self, node: str, script: str) -> str:
        done = self._lab.sh(node, script, timeout_s=120.0)
        if done.status:
            said = done.stderr.strip().splitlines()
            raise LabError(f"{node}: the on-call account: {said[-1] if said else f'status {done.status}'}")
        return ""

    def _on_each(self, do: Callable[[str], str]) -> Sequence[str]:
        with ThreadPoolExecutor(max_workers=max(1, len(self._lab.nodes)), thread_name_prefix="access") as pool:
            return list(pool.map(do, self._lab.nodes))
