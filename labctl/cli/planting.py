"""Planting one fault on several nodes: on all of them, or on none.

All nodes share one injection id, so that one `labctl recover` heals all. When a node fails, or the user presses
Ctrl-C, what was planted elsewhere is taken back before labctl ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labctl.cli.fleet import Answers, Round, ask_all, failure, names_of, some
from labctl.cli.recovering import Outcome, recover_ids
from labctl.cli.session import Session
from labctl.errors import LabctlError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab.model import Node
from labctl.report.duration import format_duration
from node_agent.api.views import PlanView
from node_agent.injection import InjectionView
from node_agent.leases import DEFAULT_LEASE_S

SETTLE_S = 30.0
"""After Ctrl-C: how long a node that is just planting may take to finish, so that it can be told to recover."""


@dataclass(frozen=True)
class Request:
    """What the nodes are asked to plant: all the same, or some of them with parameters of their own."""

    id: str
    fault: str
    parameters: Mapping[str, Any]
    lease_s: float
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """All parameters of a node, by its name, where they are not :attr:`parameters`."""

    fresh: bool = False
    """The id was made just now, so that no node can know it."""

    def parameters_for(self, node: Node) -> Mapping[str, Any]:
        """What this node is asked to plant."""
        return self.own.get(node.name, self.parameters)

    @property
    def lease_text(self) -> str:
        """The lease in words."""
        return format_duration(self.lease_s or DEFAULT_LEASE_S)


def plan_everywhere(session: Session, nodes: Sequence[Node], request: Request) -> dict[str, PlanView]:
    """The plan of each node; none for a node that has this very injection already. Raises where one refuses."""

    def ask(node: Node) -> PlanView | None:
        keeper = session.injections(node)
        if not request.fresh and keeper.list(ended=True, ids=(request.id,)).injections:
            return None
        return keeper.plan(request.id, request.fault, request.parameters_for(node))

    with session.patience(f"planning {request.fault} on {names_of(nodes)}"):
        answers = ask_all(nodes, ask)
    if answers.bad:
        raise failure(answers, "nothing was changed")
    return {node: plan for node, plan in answers.good.items() if plan is not None}


def plant_everywhere(session: Session, nodes: Sequence[Node], request: Request) -> dict[str, InjectionView]:
    """Plant on all nodes in parallel. Raises after everything was taken back where one of them fails."""

    def ask(node: Node) -> InjectionView:
        parameters = request.parameters_for(node)
        return session.injections(node).apply(request.id, request.fault, parameters, request.lease_s)

    asked = Round(nodes, ask)
    try:
        with session.patience(f"planting {request.fault} on {names_of(nodes)}"):
            asked.start()
            answers = asked.answers()
    except KeyboardInterrupt:
        _take_back_after_interrupt(session, nodes, request, asked)
        raise
    if answers.bad:
        raise _take_back(session, nodes, request, answers)
    return dict(answers.good)


def _take_back(
    session: Session, nodes: Sequence[Node], request: Request, answers: Answers[InjectionView]
) -> LabctlError:
    """Recover wherever the fault is, or may be, and say what failed."""
    refused = {n for n, error in answers.bad.items() if isinstance(error, UsageError | UnsupportedError)}
    concerned = [node for node in nodes if node.name not in refused]
    outcome = recover_ids(session, concerned, [request.id])
    failed = failure(answers, _taken_back_text(outcome, request, set(answers.good)))
    if outcome.clean:
        return failed
    dirty = NodeDirtyError(failed.message, session.command("injections"))
    stuck = {one.node: "; ".join(one.residue) for one in outcome.stuck}
    dirty.nodes = {**failed.nodes, **stuck, **{name: one.message for name, one in outcome.unreachable.items()}}
    return dirty


def take_back(session: Session, nodes: Sequence[Node], request: Request, why: LabctlError) -> LabctlError:
    """Recover what was planted after all, and say why. The error is another one where a node stays dirty."""
    outcome = recover_ids(session, nodes, [request.id])
    after = _taken_back_text(outcome, request, {node.name for node in nodes})
    kind = type(why) if outcome.clean else NodeDirtyError
    return kind(f"{why.message} ({after})", why.hint)


def _taken_back_text(outcome: Outcome, request: Request, planted: set[str]) -> str:
    parts = []
    healed = dict.fromkeys(one.node for one in outcome.recovered if one.node in planted)
    if healed:
        parts.append(f"taken back on {some(healed)}")
    if outcome.stuck:
        parts.append(some((f"STUCK on {one.node}: {some(one.residue, '; ')}" for one in outcome.stuck), "; "))
    if outcome.unreachable:
        lost = some(outcome.unreachable)
        parts.append(f"{lost} cannot be asked: if the fault got there, it heals within {request.lease_text}")
    return "; ".join(parts) or "no node has the fault"


def _take_back_after_interrupt(
    session: Session, nodes: Sequence[Node], request: Request, asked: Round[InjectionView]
) -> None:
    """Ctrl-C while planting: let the nodes finish, then recover by id. Raises where a node stays dirty."""
    where = names_of(nodes)
    session.progress.note(f"interrupted: taking {request.id} back on {where}")
    try:
        asked.settle(SETTLE_S)
        outcome = recover_ids(session, nodes, [request.id])
    except KeyboardInterrupt:
        raise NodeDirtyError(
            f"interrupted again: {request.id} may be live on {where}; it heals within {request.lease_text}",
            session.command(f"recover {request.id}"),
        ) from None
    if not outcome.clean:
        text = _taken_back_text(outcome, request, {node.name for node in nodes})
        raise NodeDirtyError(f"interrupted; {text}", session.command("injections"))
    session.progress.note(f"{request.id} is taken back")
