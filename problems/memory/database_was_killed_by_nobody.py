"""The database lost a process to a signal that nobody sent: the memory of w2 is breaking.

First come errors that the hardware corrects and reports, then a page that it cannot correct. The server
recovers at once; the memory does not, and the next page may be one of the kernel's.
"""

from __future__ import annotations

from labctl.hardware.faults.memory_corrected_errors import MemoryCorrectedErrors
from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.memory.memory_poison import MemoryPoison
from problems.common import (
    POSTGRES,
    PRIMARY_ANSWERS,
    decoy,
    judged,
    permits,
    reboot,
    restart,
    restarted,
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.probes import memory_is_whole
from problems.words import WORDS, triple

CAUSE = triple("memory of w2", "errors that were corrected, then one that was not", "one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="database_was_killed_by_nobody",
    title="Machine checks on w2, and a part of its memory is out of use",
    statement=told(
        "w2: machine check events logged; HardwareCorrupted is not 0",
        'Users say: "Nothing. Perhaps a hiccup some minutes ago."',
        "The database answers. Nobody has changed anything on w2.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="A memory module of w2 is failing: errors that were corrected, in a row, then a page of "
    "PostgreSQL that could not be, which the kernel has taken out of use. Whoever touches it dies of SIGBUS.",
    vocabulary=WORDS,
    faults=(
        Planted(fault=MemoryCorrectedErrors(count=400, every_s=15), node="w2", bites_within_s=60),
        Planted(
            fault=MemoryPoison(unit=POSTGRES, accept_data_loss=True, seed=4), node="w2", at_s=10,
            shows="awk '/^HardwareCorrupted/ { exit $2 == 0 }' /proc/meminfo",
        ),
    ),
    oracles=judged(PERMITTED, memory_is_whole("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="other memory for w2",
        steps=(("hardware", "replace-memory w2"), ("wait", "20"), ("w2", PRIMARY_ANSWERS)),
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        stop_monitor("w2"),
        decoy("other memory for the wrong node", ("hardware", "replace-memory w3"), ("wait", "30"),
              fails_as="cause_left"),
        reboot("w2"),
    ),
    case="9: memory that breaks below a database",
)  # fmt: skip
