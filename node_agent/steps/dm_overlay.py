"""Other targets in place of exact ranges of a live, mounted device's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import DmTarget, Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.dm_names import TableLine, holder_of, levels, made_devices, numbers, resolved
from node_agent.steps.dm_tables import Table, cut_out, length_of, merge, put_in, touching


class DmOverlay(Step):
    """Swaps a table in which `lines` stand where `base` was; reverting puts `base` back there and only there.

    It is the lowest level of the disk that is changed: a fault of the whole disk stands above it. The table that
    is live at the time of each change is the one that is changed, never a saved one: injections on one disk
    compose, and end in any order. A line counts as this step's own when it leads to one of its devices;
    reverting touches nothing else, so it may happen twice, or after an apply that never was. The step needs no
    saved state, because it holds `base` itself; `capture` refuses when the live table says otherwise.
    """

    kind: Literal["dm_overlay"] = "dm_overlay"
    device: str
    lines: tuple[TableLine, ...]
    base: tuple[TableLine, ...]

    def describe(self) -> str:
        spans = ", ".join(f"{line.start}+{line.length}" for line in self.lines[:4])
        more = f" and {len(self.lines) - 4} more" if len(self.lines) > 4 else ""
        return f"swap the table of {self.device} at sectors {spans}{more}"

    def resources(self) -> tuple[Resource, ...]:
        return tuple(Resource("dm", self.device, line.start, line.end) for line in self.lines)

    def capture(self, reader: Reader) -> Undo:
        table = reader.dm.table(self._level(reader))
        if merge(table) != table:
            raise ConflictError(
                f"the table of {self.device} has neighbouring lines that are one; a swap would join them",
                field="disk",
                allowed="a table in which such lines are one",
            )
        made = made_devices(reader)
        for line in self.base:
            self._refuse_unless_plain(table, line, made)
        return {}

    def _refuse_unless_plain(self, table: Table, line: TableLine, made: Mapping[str, str]) -> None:
        if line.end > length_of(table):
            raise ConflictError(f"{self.device} ends at sector {length_of(table)}, before {line.end}")
        for target in touching(table, line.start, line.end):
            holder = holder_of(target, made)
            if holder:
                raise ConflictError(f"sector {max(target.start, line.start)} of {self.device} is held by {holder}")
        if cut_out(table, line.start, line.end) != (line.as_target(),):
            raise ConflictError(f"the table of {self.device} changed since the plan was made, at {line.start}")

    def apply(self, host: Host) -> None:
        known = numbers(host, self.lines)
        level = self._level(host)
        wanted = put_in(host.dm.table(level), [resolved(line, known) for line in self.lines])
        host.dm.swap(level, wanted)

    def revert(self, host: Host, undo: Undo | None) -> None:
        if host.dm.info(self.device) is None:
            return
        level = self._level(host)
        table = host.dm.table(level)
        base = self._base_now(host, table)
        back = [
            piece
            for mine in self._mine(host, table)
            for piece in cut_out(base, mine.start, mine.start + mine.length)
        ]
        if back:
            host.dm.swap(level, put_in(table, back))

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if reader.dm.info(self.device) is None:
            return ()
        mine = self._mine(reader, reader.dm.table(self._level(reader)))
        return tuple(f"the table of {self.device} still has {t.start} {t.length} {t.kind} {t.args}" for t in mine)

    def _base_now(self, reader: Reader, table: Table) -> list[DmTarget]:
        """`base` in the order of the disk.

        A disk that was pulled and came back may have another number by now: the one that the lines around lead to.
        """
        base = [line.as_target() for line in sorted(self.base, key=lambda line: line.start)]
        made = made_devices(reader)
        around = {line.args.split()[0] for line in table if not holder_of(line, made)}
        meant = {line.args.split()[0] for line in base}
        if len(around) != 1 or len(meant) != 1 or around == meant:
            return base
        old, new = meant.pop(), around.pop()
        return [DmTarget(t.start, t.length, t.kind, t.args.replace(old, new, 1)) for t in base]

    def _level(self, reader: Reader) -> str:
        return levels(reader, self.device)[-1]

    def _mine(self, reader: Reader, table: Table) -> tuple[DmTarget, ...]:
        """The live lines, or parts of them, that lead to this step's devices.

        A name that cannot be resolved has no device, and no live table can lead to it.
        """
        known = numbers(reader, self.lines)
        found: list[DmTarget] = []
        for line in self.lines:
            if any(w not in known for w in line.args.split() if w.startswith(("dm:", "loop:"))):
                continue
            mine = resolved(line, known)
            for target in touching(table, line.start, line.end):
                start, end = max(line.start, target.start), min(line.end, target.start + target.length)
                if target.kind == mine.kind and target.args.split()[:1] == mine.args.split()[:1]:
                    found.append(DmTarget(start, end - start, target.kind, target.args))
        return tuple(found)
