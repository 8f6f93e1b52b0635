"""What oracles saw at the gates of earlier episodes, for the next ones that begin at the same snapshot.

Each episode of a check begins with a reset to one golden state, healthy and the same each time. What was seen of
it once need not be looked at again: a look at everything is what an episode on emulated nodes spends most on.
Clients have to be served at each gate all the same, and what moves with their requests is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from labctl.run.oracle import Lookout, Oracle, Seen, Sight, look_all


class Gates:
    """Sights of one snapshot of one lab."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    @property
    def known(self) -> bool:
        """Whether there has been a gate at this snapshot."""
        return bool(self._seen)

    def look(self, oracles: Sequence[Oracle], lab: Lookout) -> Sight:
        """What the oracles see of a lab that was just reset; see :func:`labctl.run.oracle.look_all`."""
        known = {one.name: self._seen[key] for one in oracles if (key := key_of(one)) in self._seen}
        sight = look_all([oracle for oracle in oracles if oracle.name not in known], lab)
        self._seen |= {
            key_of(one): sight.seen[one.name] for one in oracles if one.name in sight.seen and not one.moves
        }
        return Sight(seen={**known, **sight.seen}, blind=sight.blind)

    def forget(self) -> None:
        """After a gate that did not pass, or another snapshot."""
        self._seen.clear()


def key_of(oracle: Oracle) -> str:
    """The same for oracles that see the same: what a problem permits is for their judgement."""
    kind = f"{type(oracle).__module__}.{type(oracle).__qualname__}"
    return f"{kind} {oracle.model_dump_json(exclude={'permitted'})}"
