"""The state of the host before the first injection of a boot, kept for the next start of the agent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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

    def adopt(self, boot_id: str, now: State, items: Mapping[str, Iterable[str]], gone: str = "") -> None:
        """Take these items (by category) as they are now into the state that counts as before; so that what the
        owner of the node changed on purpose is no difference. `gone`: forget items with this text, too."""
        state = self.read(boot_id)
        if state is None:
            return
        for category, names in items.items():
            kept = {k: v for k, v in state.get(category, {}).items() if not gone or v != gone}
            for name in names:
                kept.pop(name, None)
            state[category] = {**kept, **{n: now[category][n] for n in names if n in now[category]}}
        self.write(boot_id, state)

    def read(self, boot_id: str) -> State | None:
        """None where there is none of this boot."""
        try:
            saved = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        return dict(saved["state"]) if saved.get("boot_id") == boot_id else None
