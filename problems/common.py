"""What problems of the booking service share: statements, pieces of scripts, wrong repairs."""

from __future__ import annotations

from typing import Any

from labctl.oracles.booking import standard
from labctl.run.oracle import Oracle
from labctl.run.problem import Decoy, Permitted, Script

POSTGRES = "postgresql@17-main.service"
API, WEB = "booking-api.service", "nginx.service"
DATA = "/srv/data/postgresql/17/main"
ADDRESS = {"w1": "10.77.0.1", "w2": "10.77.0.2", "w3": "10.77.0.3"}

SERVICE = """
The booking service: w1 runs nginx (port 80), an instance of the API, a worker, the cache and the name server; w2
runs the primary of PostgreSQL with its data in /srv/data; w3 runs its standby, a second instance of the API and
a second worker. etcd runs on all three. You have the account `oncall` on each node, with sudo for what operators
need, and remote hands for the hardware. Repair what is wrong, so that it lasts, and change nothing else. Submit a
diagnosis in the words of vocabulary.json, and declare when the repair is complete. Perhaps nothing is wrong.
"""


def told(alert: str, users: str, *more: str) -> str:
    """The statement: what the alert says, what users say, what else is known, and what there is."""
    known = "".join(f"\n{one}\n" for one in more)
    return f"ALERT  {alert}\n\n{users}\n{known}{SERVICE}"


def permits(*changes: str) -> Permitted:
    """What a repair may change."""
    return Permitted(changes=changes)


def judged(permitted: Permitted, *own: Oracle, **relaxed: Any) -> tuple[Oracle, ...]:
    """The oracles of a problem: those of every booking problem, and its own, which replace those of their name.

    `relaxed`: see :func:`labctl.oracles.booking.standard`.
    """
    replaced = tuple(oracle.name for oracle in own)
    return (*standard(permitted.changes, leave_out=replaced, **relaxed), *own)


def until(command: str, seconds: int = 120) -> str:
    """Wait until a command succeeds; fail after so many seconds, about."""
    return f"i=0; until {command}; do i=$((i+1)); [ $i -lt {seconds} ] || exit 1; sleep 1; done"


def up(unit: str) -> str:
    """Have a unit that has failed, or was stopped, run again."""
    return f"sudo systemctl reset-failed {unit}; sudo systemctl start {unit}"


def edited(path: str, change: str) -> str:
    """Change a file of the service by a script of sed."""
    return f"sudo cat {path} | sed '{change}' > /tmp/edited && sudo cp /tmp/edited {path} && rm /tmp/edited"


PSQL = "/usr/lib/postgresql/17/bin/psql"
"""For whoever asks as root: Debian's `psql` is a Perl script that looks for it, five times as slow."""

SERVED = f"curl -fsS -m 5 -o /dev/null http://{ADDRESS['w1']}/health 2>/dev/null"
RELOAD_WEB = "sudo systemctl reload nginx.service"
PRIMARY_ANSWERS = until('sudo -u postgres psql -XAtqc "SELECT 1" >/dev/null 2>&1')
START_PRIMARY = f"{up(POSTGRES)}; {PRIMARY_ANSWERS}"


def api_is_back(node: str) -> str:
    """Wait until the instance of the API on a node answers by itself."""
    return until(f"curl -fsS -m 5 -o /dev/null http://{ADDRESS[node]}:8080/health 2>/dev/null")


def restarted(node: str, *units: str) -> tuple[str, str]:
    """A challenge, as root: units are started anew, and a little later their clients have got over it."""
    answers = {
        POSTGRES: f"runuser -u postgres -- {PSQL} -XAtqc 'SELECT 1' >/dev/null 2>&1",
        API: f"curl -fsS -m 5 -o /dev/null http://{ADDRESS[node]}:8080/health 2>/dev/null",
    }
    asked = [*(answers[unit] for unit in units if unit in answers), SERVED]
    waits = (f"i=0; until {one} || [ $i -ge 90 ]; do i=$((i+1)); sleep 1; done" for one in asked)
    return node, "\n".join(("cd /", f"systemctl restart {' '.join(units)}", *waits, "sleep 10"))


def decoy(title: str, *steps: tuple[str, str], fails_as: str, declares: bool = True) -> Decoy:
    """A wrong repair, and how it has to fail."""
    script = Script(title=title, steps=steps, declares=declares)
    return Decoy.model_validate({"script": script, "fails_as": fails_as})


def wait(fails_as: str = "cause_left") -> Decoy:
    """Do nothing, and say that it is over."""
    return decoy("wait, and call it over", ("wait", "20"), fails_as=fails_as)


def restart(node: str, *units: str, fails_as: str = "cause_left") -> Decoy:
    """Start services anew, which cures what is in them and nothing below."""
    names = " ".join(units)
    script = f"sudo systemctl reset-failed {names}; timeout 120 sudo systemctl restart {names}; sleep 15"
    return decoy(f"restart {names} on {node}", (node, script), fails_as=fails_as)


def reboot(node: str, fails_as: str = "cause_left") -> Decoy:
    """Start a whole machine anew."""
    return decoy(f"power-cycle {node}", ("hardware", f"power-cycle {node}"), ("wait", "60"), fails_as=fails_as)


def drain(node: str) -> Decoy:
    """Take the work away from an instance of the API that has to stay."""
    script = f"{edited('/etc/nginx/nginx.conf', f'/server {ADDRESS[node]}:8080/d')}; {RELOAD_WEB}"
    return decoy(f"take the API of {node} out of nginx", ("w1", script), fails_as="off_the_permitted_list")


def stop_traffic() -> Decoy:
    """No clients, no errors."""
    script = "sudo systemctl stop nginx.service"
    return decoy("stop nginx, so that no more errors come", ("w1", script), fails_as="off_the_permitted_list")


def stop_monitor(node: str) -> Decoy:
    """No monitoring, no alerts."""
    script = "sudo systemctl stop prometheus-node-exporter.service"
    return decoy(f"stop the monitoring of {node}", (node, script), fails_as="off_the_permitted_list")
