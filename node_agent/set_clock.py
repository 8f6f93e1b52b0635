"""Setting the wall clock on request, as labctl does with a node that was booted or restored."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from node_agent.baseline import Baseline
from node_agent.clock_state import clock_state
from node_agent.errors import ConflictError, StorageError
from node_agent.host import Host
from node_agent.injection import ENDED, Live

log = logging.getLogger(__name__)


def set_wall_clock(host: Host, known: Iterable[Live], baseline: Baseline, unix_s: float) -> None:
    """Set it, and take it as what it should be.

    Raises :class:`ConflictError` while an injection holds the clock: its recovery gives the true time back, and
    to set the clock meanwhile would end the fault behind the back of whoever planted it.
    """
    for live in known:
        if live.state not in ENDED and any(kind == "clock" for kind, _ in live.touched):
            raise ConflictError(
                f"the clock is held by injection {live.id} ({live.fault})",
                allowed=f"labctl recover {live.id}, which gives the true time back",
            )
    host.set_time(unix_s)
    try:
        baseline.adopt(host.boot_id(), {"clock": clock_state(host)}, {"clock": ("offset",)})
    except StorageError as error:  # the next look at the residue shows the step, and nothing worse
        log.warning("%s", error)
