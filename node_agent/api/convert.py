"""Between the models and the messages of the contract. Everything here is a pure function."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from typing import Any, cast

from node_agent.api import agent_pb2 as pb
from node_agent.api.views import (
    AuditEntry,
    AuditReport,
    ClockChange,
    FaultSupport,
    InjectionList,
    NodeFacts,
    PlanView,
    ProbeReport,
    StepView,
)
from node_agent.audit import Entry
from node_agent.content import shown
from node_agent.errors import AgentError, Refusal
from node_agent.fault import Capability, Evidence, Facts, Hit, Missing
from node_agent.injection import InjectionState, InjectionView, Plan
from node_agent.residue import Difference
from node_agent.signs import SignSeen
from node_agent.version import CONTRACT

MAX_TEXT = 1000
"""Characters of an error's texts on the wire: gRPC refuses metadata of more than 8 KiB."""


# -- what the agent says -------------------------------------------------------------------------------------


def error_message(error: AgentError) -> pb.Error:
    """An error as the contract carries it, each text in one line and bounded."""
    texts = (" ".join(text.split()) for text in (error.message, error.field, error.allowed))
    message, field, allowed = (t if len(t) <= MAX_TEXT else t[: MAX_TEXT - 1] + "…" for t in texts)
    return pb.Error(code=error.code, message=message, field=field, allowed=allowed)


def facts_message(facts: Facts, *, clock_unix_s: float, boottime_s: float, stopped: bool) -> pb.FactsReply:
    return pb.FactsReply(
        node=facts.node,
        kernel=facts.kernel,
        boot_id=facts.boot_id,
        os=facts.os,
        python=facts.python,
        agent_version=facts.agent_version,
        contract=CONTRACT,
        cpus=facts.cpus,
        memory_mib=facts.memory_mib,
        clock_unix_s=clock_unix_s,
        boottime_s=boottime_s,
        stopped=stopped,
        machine=platform.machine(),
    )


def audit_message(entries: Iterable[Entry], oldest: int, problems: Iterable[str]) -> pb.AuditReply:
    return pb.AuditReply(
        entries=[
            pb.AuditEntry(**{k: v for k, v in vars(e).items() if k != "what"}, what_json=json.dumps(e.what))
            for e in entries
        ],
        oldest=oldest,
        problems=problems,
    )


def probe_message(
    capabilities: Iterable[Capability], support: Iterable[tuple[str, tuple[Missing, ...]]]
) -> pb.ProbeReply:
    return pb.ProbeReply(
        capabilities=[
            pb.Capability(name=c.name, available=c.available, reason=c.reason, remedy=c.remedy)
            for c in capabilities
        ],
        faults=[
            pb.FaultSupport(fault=name, available=not missing, missing=_missing(missing))
            for name, missing in support
        ],
    )


def plan_message(plan: Plan) -> pb.PlanReply:
    return pb.PlanReply(
        fault=plan.fault.name,
        parameters_json=json.dumps(shown(plan.fault.model_dump(mode="json"))),
        target=plan.target.describe() if plan.target else "",
        backend=plan.notes.backend,
        steps=[
            pb.Step(
                kind=str(getattr(step, "kind", type(step).__name__)),
                description=step.describe(),
                resources=[str(resource) for resource in step.resources()],
                json=step.model_dump_json(),
            )
            for step in plan.steps
        ],
        covers=plan.notes.covers,
        not_covered=plan.notes.not_covered,
        warnings=plan.notes.warnings,
        operator_sees=plan.fault.operator_sees,
        reversible=plan.fault.reversible,
        missing=_missing(plan.missing),
        risks=plan.notes.risks,
        target_json=plan.target.model_dump_json() if plan.target else "",
    )


def sign_messages(signs: Iterable[SignSeen]) -> list[pb.Sign]:
    return [pb.Sign(**sign.model_dump()) for sign in signs]


def injection_message(view: InjectionView) -> pb.Injection:
    evidence = None
    if view.evidence is not None:
        evidence = pb.Evidence(
            armed=view.evidence.armed,
            hits=view.evidence.hits,
            counters=view.evidence.counters,
            log=view.evidence.log,
            log_gap=view.evidence.log_gap,
            notes=view.evidence.notes,
            samples=[pb.Hit(**hit.model_dump()) for hit in view.evidence.samples],
            lost=view.evidence.lost,
            signs=sign_messages(view.evidence.signs),
        )
    return pb.Injection(
        id=view.id,
        node=view.node,
        fault=view.fault,
        parameters_json=json.dumps(shown(view.parameters)),
        state=view.state.upper(),
        target=view.target,
        backend=view.backend,
        lease_s=view.lease_s,
        expires_in_s=view.expires_in_s,
        evidence=evidence,
        residue=view.residue,
        reason=view.reason,
        error=view.error,
        age_s=view.age_s,
        data_lost=view.data_lost,
    )


def residue_message(differences: Iterable[Difference]) -> pb.ResidueReply:
    return pb.ResidueReply(
        entries=[
            pb.ResidueEntry(
                category=d.category,
                item=d.item,
                before=d.before,
                after=d.after,
                injection=d.injection,
                foreign=d.foreign,
            )
            for d in differences
        ]
    )


def _missing(missing: Iterable[Missing]) -> list[pb.Missing]:
    return [pb.Missing(capability=m.capability, reason=m.reason, remedy=m.remedy) for m in missing]


# -- what labctl understands ---------------------------------------------------------------------------------


def parameters_of(text: str) -> dict[str, Any]:
    """The parameters of a request. Raises :class:`Refusal` for anything but a JSON object of finite numbers."""
    if not text:
        return {}
    value = json_of(text, "parameters")
    if not isinstance(value, dict):
        raise Refusal("the parameters are not a JSON object", field="parameters", allowed="a JSON object")
    return value


def json_of(text: str, field: str) -> object:
    """What a JSON text says. Raises :class:`Refusal` naming the field."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the {field} are not JSON: {error}", field=field, allowed="JSON") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def node_facts(message: pb.FactsReply) -> NodeFacts:
    return NodeFacts(**{name: getattr(message, name) for name in NodeFacts.model_fields})


def probe_report(message: pb.ProbeReply) -> ProbeReport:
    return ProbeReport(
        capabilities=tuple(
            Capability(name=c.name, available=c.available, reason=c.reason, remedy=c.remedy)
            for c in message.capabilities
        ),
        faults=tuple(
            FaultSupport(fault=f.fault, available=f.available, missing=_missing_of(f.missing))
            for f in message.faults
        ),
    )


def plan_view(message: pb.PlanReply) -> PlanView:
    return PlanView(
        fault=message.fault,
        parameters=_object(message.parameters_json),
        target=message.target,
        backend=message.backend,
        steps=tuple(
            StepView(kind=s.kind, description=s.description, resources=tuple(s.resources), data=_object(s.json))
            for s in message.steps
        ),
        covers=tuple(message.covers),
        not_covered=tuple(message.not_covered),
        warnings=tuple(message.warnings),
        operator_sees=message.operator_sees,
        reversible=message.reversible,
        missing=_missing_of(message.missing),
        risks=dict(message.risks),
        target_data=_object(message.target_json),
    )


def signs_seen(messages: Iterable[pb.Sign]) -> tuple[SignSeen, ...]:
    return tuple(SignSeen(**{name: getattr(m, name) for name in SignSeen.model_fields}) for m in messages)


def injection_view(message: pb.Injection) -> InjectionView:
    evidence = None
    if message.HasField("evidence"):
        evidence = Evidence(
            armed=message.evidence.armed,
            hits=message.evidence.hits,
            counters=dict(message.evidence.counters),
            log=tuple(message.evidence.log),
            log_gap=message.evidence.log_gap,
            notes=tuple(message.evidence.notes),
            samples=tuple(_hit_of(hit) for hit in message.evidence.samples),
            lost=tuple(message.evidence.lost),
            signs=signs_seen(message.evidence.signs),
        )
    return InjectionView(
        id=message.id,
        node=message.node,
        fault=message.fault,
        parameters=_object(message.parameters_json),
        state=cast("InjectionState", pb.State.Name(message.state).lower()),
        target=message.target,
        backend=message.backend,
        lease_s=message.lease_s,
        expires_in_s=message.expires_in_s,
        age_s=message.age_s,
        evidence=evidence,
        residue=tuple(message.residue),
        data_lost=tuple(message.data_lost),
        reason=message.reason,
        error=message.error,
    )


def injection_list(message: pb.ListReply | pb.RecoverReply) -> InjectionList:
    return InjectionList(injections=tuple(injection_view(i) for i in message.injections), stopped=message.stopped)


def residue_entries(message: pb.ResidueReply) -> tuple[Difference, ...]:
    return tuple(
        Difference(
            category=e.category,
            item=e.item,
            before=e.before,
            after=e.after,
            injection=e.injection,
            foreign=e.foreign,
        )
        for e in message.entries
    )


def audit_report(message: pb.AuditReply) -> AuditReport:
    names = [name for name in AuditEntry.model_fields if name != "what"]
    return AuditReport(
        entries=tuple(
            AuditEntry(what=_object(e.what_json), **{name: getattr(e, name) for name in names})
            for e in message.entries
        ),
        oldest=message.oldest,
        problems=tuple(message.problems),
    )


def clock_change(message: pb.SetClockReply) -> ClockChange:
    return ClockChange(before_unix_s=message.before_unix_s, after_unix_s=message.after_unix_s)


def _hit_of(message: pb.Hit) -> Hit:
    return Hit(**{name: getattr(message, name) for name in Hit.model_fields})


def _missing_of(messages: Iterable[pb.Missing]) -> tuple[Missing, ...]:
    return tuple(Missing(capability=m.capability, reason=m.reason, remedy=m.remedy) for m in messages)


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}
