"""`node-agent disks`: what the unit runs at boot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from node_agent.errors import StorageError
from node_agent.host.real import RealHost
from node_agent.prepare.disks import FOLDER, bring_up_all
from node_agent.prepare.looking import wait
from node_agent.prepare.records import Records

DEVICE_S = 30.0
"""How long a disk may take to be found after udev has begun."""

_BROKEN = 70


def bring_up_at_boot(options: Mapping[str, str]) -> int:
    """Bring up what is prepared; returns the exit status. A disk that is not there does not keep the others."""
    state = Path(options.get("state", "/var/lib/groundfault"))
    host = RealHost()
    try:
        problems = bring_up_all(
            host, Records(state / FOLDER), lambda record: wait(lambda: host.exists(record.source), DEVICE_S)
        )
    except StorageError as error:
        problems = (error.message,)
    for line in problems:
        print(line, file=sys.stderr)
    return _BROKEN if problems else 0
