"""Nobody: what becomes of the service when nothing is done."""

from __future__ import annotations

from labctl.run.diagnosis import Diagnosis


class NoSolver:
    """See :class:`labctl.run.episode.Solver`."""

    def start(self) -> None:
        pass

    def diagnosis(self) -> Diagnosis | None:
        return None

    def declared(self) -> bool:
        return False

    def ended(self) -> bool:
        return True

    def end(self) -> None:
        pass
