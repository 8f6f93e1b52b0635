"""Taking steps back: from the journal's records, in reverse order, verified by kernel state.

Abort of a half-applied injection, `recover`, an expired lease, and a fresh start after a crash or a reboot all
come through :func:`undo_all`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node_agent.errors import AgentError
from node_agent.host import CommandError, Host, Reader
from node_agent.journal import Record
from node_agent.steps import Step, Undo, load_step


@dataclass(frozen=True)
class Applied:
    """A step that was begun, perhaps done, with what `capture` saw (None: that record was unreadable)."""

    number: int
    step: Step
    undo: Undo | None


def applied_steps(records: Iterable[Record], corrupt: int) -> tuple[Applied, ...]:
    """The steps an injection may have done, in order.

    "Will do" without "did" counts as done. Where lines were unreadable, every step of the plan counts as done,
    with the undo that can still be read. Raises ValueError where a readable record makes no sense.
    """
    found: dict[int, Applied] = {}
    planned: list[Step] = []
    for record in records:
        if record.get("rec") == "plan":
            planned = [load_step(data) for data in record["steps"]]
        elif record.get("rec") == "will":
            number = int(record["n"])
            found[number] = Applied(number, load_step(record["step"]), record["undo"])
    if corrupt:
        for number, step in enumerate(planned):
            found.setdefault(number, Applied(number, step, None))
    return tuple(found[number] for number in sorted(found))


@dataclass(frozen=True)
class Undone:
    """What an undo left in the kernel, empty when all is gone, and which data the fault has cost for good."""

    left: tuple[str, ...]
    lost: tuple[str, ...]


def undo_all(
    host: Host, applied: Iterable[Applied], note: Callable[[Applied], None], *, skip_volatile: bool = False
) -> Undone:
    """Revert in reverse order, heal what the fault made the system do, and read the kernel.

    A step that cannot be reverted does not keep the others from it. `skip_volatile` is for after a reboot, which
    has undone those already.
    """
    order = sorted(applied, key=lambda a: a.number, reverse=True)
    errors: list[str] = []
    lost: list[str] = []
    for one in order:
        if not (skip_volatile and one.step.volatile):
            try:
                one.step.revert(host, one.undo)
            except (OSError, CommandError, AgentError) as error:
                errors.append(f"{one.step.describe()}: {error}")
                continue
        note(one)
    for one in order if not errors else ():
        try:
            lost += one.step.heal(host, one.undo)
        except (OSError, CommandError, AgentError) as error:
            errors.append(f"{one.step.describe()}: cannot be healed: {error}")
    left = [text for one in order for text in leftovers(host, one)]
    return Undone(left=tuple(left + errors), lost=tuple(lost))


def leftovers(reader: Reader, one: Applied) -> tuple[str, ...]:
    """What kernel state still shows of one step; not being able to look counts as something left."""
    try:
        return one.step.leftovers(reader, one.undo)
    except (OSError, CommandError, AgentError) as error:
        return (f"{one.step.describe()}: cannot be checked: {error}",)
