"""Plans in an operator's words. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labctl.report.text import labelled
from node_agent.api.views import PlanView
from node_agent.fault import Missing


def parameters_text(values: Mapping[str, Any]) -> str:
    """Parameters in one line, without those that are not set."""
    last = sorted(values.items(), key=lambda item: item[0] == "seed")
    return " ".join(f"{k}={_value(v)}" for k, v in last if v not in (None, [], "", False))


def _value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "yes" if value is True else str(value)


def reach_rows(plan: PlanView) -> list[tuple[str, str]]:
    """What the fault looks like from the node, and which ways to its target it covers."""
    return [
        ("operator sees", plan.operator_sees),
        ("covers", ", ".join(plan.covers)),
        *(("not covered", one) for one in plan.not_covered),
        *(("warning", warning) for warning in plan.warnings),
    ]


def plan_text(node: str, plan: PlanView, width: int = 0) -> str:
    """A plan: what would be done, what it reaches and what it does not. Nothing has been changed."""
    rows = [
        ("target", plan.target),
        ("backend", "" if plan.missing else plan.backend),
        ("parameters", parameters_text(plan.parameters)),
        *reach_rows(plan),
        *((f"risk, wants --accept-{risk.replace('_', '-')}", text) for risk, text in plan.risks.items()),
        ("reversible", plan.reversible),
    ]
    steps = [f"    {number}. {step.description}" for number, step in enumerate(plan.steps, start=1)]
    lines = [f"{plan.fault} on {node}: only planned, nothing was changed", *labelled(rows, width=width)]
    if plan.missing:
        lines += ["  cannot be done on this node", *missing_lines(plan.missing)]
    return "\n".join([*lines, *(["  steps", *steps] if steps else [])])


def missing_lines(missing: Sequence[Missing]) -> list[str]:
    """One line a missing capability: what, why, and what would help."""
    return [f"    {m.capability}: {m.reason}" + (f"; remedy: {m.remedy}" if m.remedy else "") for m in missing]
