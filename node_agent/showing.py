"""What an injection shows and costs: its evidence with the signs it declares, and the data it has lost."""

from __future__ import annotations

from collections.abc import Sequence

from node_agent.errors import AgentError, Refusal
from node_agent.fault import Evidence, tag_of
from node_agent.host import Reader
from node_agent.injection import ENDED, Live, Plan
from node_agent.journal import Record
from node_agent.signs import seen


def read_evidence(reader: Reader, live: Live) -> Evidence | None:
    """The evidence as the kernel has it now; of one that has ended, or is not ours to read, the last known."""
    if live.model is None or live.target is None or live.state in ENDED:
        return live.evidence
    try:
        found = live.model.evidence(reader, live.target, tag_of(live.id), live.mark.log)
        return found.model_copy(update={"signs": seen(reader, live.model.signs(live.target), live.mark)})
    except (OSError, AgentError) as error:
        return Evidence(
            armed=False,
            hits=0,
            notes=(f"evidence cannot be read: {error}",),
            lost=_unknown(live, "its evidence cannot be read"),
        )


def evidence_of_before(records: Sequence[Record], boot_id: str) -> Evidence | None:
    """What the journal knows of an injection of an earlier process. The kernel knows nothing of an earlier boot.

    A fault that may cost a reboot has bitten once where there was one.
    """
    plan = next((r for r in records if r.get("rec") == "plan"), {})
    closed = [int(r["hits"]) for r in records if r.get("rec") == "closed"]
    planted = plan.get("boot_id", boot_id)
    if planted == boot_id:
        return Evidence(armed=False, hits=closed[-1]) if closed else None
    hits = closed[-1] if closed else int("reboot" in plan.get("risks", {}))
    note = f"the node has rebooted: it was planted in boot {planted}, this is boot {boot_id}"
    return Evidence(armed=False, hits=hits, notes=(note,))


def lost_by(live: Live) -> tuple[str, ...]:
    """What the fault itself cost: as its evidence says, or what it may have cost where nobody could look."""
    if live.model is not None and live.evidence is not None:
        return live.evidence.lost
    return _unknown(live, "the agent was not there to the end")


def _unknown(live: Live, why: str) -> tuple[str, ...]:
    text = live.risks.get("data_loss", "")
    return (f"not known, {why}: {text}",) if text else ()


def refuse_unaccepted(plan: Plan) -> None:
    """Raise :class:`Refusal` where a risk of the plan is not accepted by the fault's parameters."""
    for risk, text in plan.notes.risks.items():
        field = f"accept_{risk}"
        if not getattr(plan.fault, field, False):
            raise Refusal(f"{field}: {text}", field=field, allowed=f"--{field.replace('_', '-')}, if you mean it")
