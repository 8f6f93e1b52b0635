"""The state of the host before the first injection of a boot, kept for the next start of the agent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from node_agent.errors import StorageError
from node_agent.residue import State


@dataclass(frozen=True)
class Baseline:
    """The file it is kept in."""

    path: Path

    def write(self, boot_id: str, state: State) -> None:
        """Raises :class:`StorageError` where it cannot be kept."""
        try:
            self.path.write_text(json.dumps({"boot_id": boot_id, "state": state}))
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error}; nothing was changed") from error

    def read(self, boot_id: str) -> State | None:
        """None where there is none of this boot."""
        try:
            saved = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        return dict(saved["state"]) if saved.get("boot_id") == boot_id else None
