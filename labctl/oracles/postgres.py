"""Asking PostgreSQL as a new client of its own node: a session that has nothing cached, and a time limit."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from labctl.oracles.nodes import on_each, program
from labctl.run.oracle import Lookout

SERVERS = ("w2", "w3")
PATIENCE_S = 60
_KILLED = 124


class Said(BaseModel):
    """What a server answered, or why it did not: that is the service's doing, not the lab's."""

    model_config = ConfigDict(frozen=True)

    text: str = ""
    error: str = ""

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Its rows, by columns."""
        return tuple(tuple(line.split("\t")) for line in self.text.splitlines() if line)


def ask(lab: Lookout, node: str, sql: str, *, database: str = "booking", patience_s: int = PATIENCE_S) -> Said:
    """Run SQL over a new session on a node; columns of rows are apart by tabs.

    Raises :class:`LabError` where the node does not answer; an error of the server is in what it said.
    """
    given = {"sql": f"{sql}\n", "database": database, "patience_s": patience_s}
    done = lab.python(node, program("psql"), json.dumps(given), timeout_s=patience_s + 40.0)
    if done.status == 0:
        return Said(text=done.stdout)
    if done.status in (_KILLED, 137):
        return Said(text=done.stdout, error=f"no answer within {patience_s} s")
    said = done.stderr.strip().splitlines()
    return Said(text=done.stdout, error=said[0] if said else f"psql ended with {done.status}")


def primaries(lab: Lookout, servers: Sequence[str] = SERVERS) -> tuple[dict[str, str], dict[str, str]]:
    """Which servers take writes, by node with "f", standbys with "t"; and why others do not answer."""
    said = on_each(tuple(servers), lambda node: ask(lab, node, "SELECT pg_is_in_recovery()", database="postgres"))
    roles = {node: one.text.strip() for node, one in said.items() if not one.error}
    return roles, {node: one.error for node, one in said.items() if one.error}
