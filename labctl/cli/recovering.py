"""Finding injections on the nodes of a lab, and taking them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labctl.cli.fleet import Answers, ask_all
from labctl.cli.session import Session
from labctl.errors import LabctlError, NotThereError
from labctl.lab.model import Node
from node_agent.injection import InjectionView


@dataclass(frozen=True)
class Outcome:
    """What became of a recovery: what is healed, what is stuck, and which nodes did not answer."""

    recovered: tuple[InjectionView, ...] = ()
    stuck: tuple[InjectionView, ...] = ()
    unreachable: Mapping[str, LabctlError] = field(default_factory=dict)
    answered: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """Ids that no node that answered knows."""

    @property
    def clean(self) -> bool:
        """Whether every node answered and none has anything left."""
        return not self.stuck and not self.unreachable


def find_injections(
    session: Session, nodes: Sequence[Node], ids: Sequence[str] = (), *, ended: bool = False
) -> Answers[tuple[InjectionView, ...]]:
    """The injections of each node: all live ones, or those of `ids`; `ended` adds those that are over."""
    return ask_all(nodes, lambda node: session.injections(node).list(ended=ended, ids=tuple(ids)).injections)


def recover_ids(session: Session, nodes: Sequence[Node], ids: Sequence[str]) -> Outcome:
    """Recover these injections wherever they are. Already over, or never there, is fine.

    One that an agent does not know it will not plant any more, should the request to do so still be on its way.
    """

    def ask(node: Node) -> tuple[InjectionView, ...]:
        keeper = session.injections(node)
        if len(ids) == 1 and not keeper.below:
            try:
                return keeper.recover(ids=tuple(ids)).injections
            except NotThereError:
                return ()
        here = tuple(one.id for one in keeper.list(ended=True, ids=tuple(ids)).injections)
        return keeper.recover(ids=here).injections if here else ()

    return outcome_of(ask_all(nodes, ask), ids)


def recover_everything(session: Session, nodes: Sequence[Node], *, stop: bool = False) -> Outcome:
    """Recover whatever is live on these nodes; `stop`: and have their agents refuse new faults from now on."""

    def ask(node: Node) -> tuple[InjectionView, ...]:
        keeper = session.injections(node)
        return (keeper.recover(stop="set") if stop else keeper.recover(everything=True)).injections

    return outcome_of(ask_all(nodes, ask))


def outcome_of(answers: Answers[tuple[InjectionView, ...]], ids: Sequence[str] = ()) -> Outcome:
    """Sort what the nodes answered."""
    found = [one for injections in answers.good.values() for one in injections]
    known = {one.id for one in found}
    return Outcome(
        recovered=tuple(one for one in found if one.state == "recovered"),
        stuck=tuple(one for one in found if one.state != "recovered"),
        unreachable=answers.bad,
        answered=tuple(answers.good),
        absent=tuple(i for i in dict.fromkeys(ids) if i not in known),
    )
