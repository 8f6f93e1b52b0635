"""A lab with the workload `booking`, booted and deployed once a session, for all tests of real problems."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from labctl.lab import provision
from labctl.lab.model import LabOptions, Node
from labctl.lab.state import read_record
from labctl.run.load import HttpLoad
from problems.workloads.booking.clients import load_plan
from tests.lab import LabUnderTest, lab_up, ssh


@dataclass(frozen=True)
class BookingLab:
    """The lab, up and serving. Tests that change it call `reset` afterwards."""

    lab: LabUnderTest

    @property
    def name(self) -> str:
        return self.lab.provider.name

    @property
    def url(self) -> str:
        """Where clients reach nginx; may change with a reset."""
        record = read_record(self.lab.provider.directory / "lab.json")
        assert record is not None
        return provision.web_url(record)

    def node(self, name: str) -> Node:
        return self.lab.node(name)

    def sh(self, node: str, script: str, *, check: bool = True, timeout_s: float = 120.0) -> str:
        """Standard output of a script that runs on a node as root."""
        return ssh(self.node(node), script, check=check, timeout=timeout_s).stdout.strip()

    def sql(self, node: str, query: str) -> str:
        """The answer of a node's PostgreSQL, columns parted by `|`."""
        return self.sh(node, f"cd / && runuser -u postgres -- psql -XAtd booking <<'EOF'\n{query}\nEOF")

    def reset(self) -> None:
        self.lab.reset()

    def api(self, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
        """One request through nginx."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reply = httpx.request(method, f"{self.url}{path}", headers=headers, json=body, timeout=15, trust_env=False)
        return reply.status_code, json.loads(reply.text) if reply.text else None

    @contextmanager
    def load(self, seed: int = 1) -> Iterator[HttpLoad]:
        """Clients of the service, until the block is left."""
        load = HttpLoad(load_plan(self.url, seed))
        load.start()
        try:
            yield load
        finally:
            load.stop()


@pytest.fixture(scope="session")
def booking_lab(labs_home: Path) -> Iterator[BookingLab]:
    """The one lab with a booking service of this session, as its snapshot is."""
    with lab_up("booking", LabOptions(workload="booking")) as up:
        yield BookingLab(up)
