"""The words in which diagnoses of the booking service are given. Pure.

They are the same for all problems, so that nobody learns the cause from which words there are.
"""

from __future__ import annotations

from labctl.run.diagnosis import Triple, Vocabulary

_NODES = ("w1", "w2", "w3")
_PARTS = (
    "power", "CPU", "memory", "data disk", "file system /srv/data", "network interface", "clock",
    "name resolution", "kernel",
)  # fmt: skip

WORDS = Vocabulary(
    component=(
        *(f"{what} of {node}" for node in _NODES for what in _PARTS),
        "w1 itself", "w2 itself", "w3 itself",
        "network between w1 and w2", "network between w1 and w3", "network between w2 and w3",
        "nginx on w1", "booking-api on w1", "booking-api on w3", "booking-worker on w1", "booking-worker on w3",
        "valkey on w1", "name server on w1", "etcd on w1", "etcd on w2", "etcd on w3",
        "PostgreSQL on w2", "PostgreSQL on w3", "monitoring", "clients",
    ),
    mechanism=(
        "sectors cannot be read", "bytes change without an error", "answers late", "stalls", "stands still",
        "has no space left", "has no inodes left",
        "read-only after an error", "flushes fail", "writes fail", "was taken out",
        "loses packets at random", "loses packets in bursts", "delays packets", "corrupts packets",
        "large packets vanish", "hears nothing from one peer", "goes down and up again", "is down",
        "carries too little", "points to a wrong address", "does not answer", "shows a later time",
        "shows an earlier time", "taken by a neighbour",
        "leaked by a neighbour", "used up by its own load", "open files used up",
        "local ports used up", "connection table full", "memory is refused", "new processes are refused",
        "opening files is refused", "connecting is refused", "errors that were corrected, then one that was not",
        "is off", "wrong setting", "dies again and again", "given up after a trigger that is over",
        "ask again faster than they can be served", "kept dead connections of a trigger that is over",
        "cannot follow after a trigger that is over", "expired certificate", "bug in the release",
        "blocked by locks", "bad query plan",
    ),
    scope=(
        "one table", "one operation", "one unit", "one node", "one link", "one direction of one link",
        "all links of one node", "the whole database", "replication only", "all nodes", "a share of all requests",
    ),
)  # fmt: skip


def triple(component: str, mechanism: str, scope: str) -> Triple:
    """One cause, in these words. Raises :class:`labctl.run.diagnosis.DiagnosisError` for others."""
    found = Triple(component=component, mechanism=mechanism, scope=scope)
    WORDS.check((found,))
    return found
