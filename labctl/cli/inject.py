"""`labctl inject FAULT`: one subcommand a fault, its options made from the fault's model."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel

from labctl.cli.aiming import (
    chosen_data,
    chosen_lines,
    find_targets,
    group_options,
    targets_option,
    without_need,
)
from labctl.cli.base import LabCommand, LabGroup, session_of
from labctl.cli.fleet import some
from labctl.cli.limits import Blast, limit_lines, refuse_exceeded
from labctl.cli.names import AnyFault, built_aliases, known_faults, resolve_name
from labctl.cli.options import duration_option, labels_option, within_option
from labctl.cli.parameters import (
    NOTHING,
    example_lines,
    given_parameters,
    inject_line,
    option_for,
    option_words,
    parameters_of,
    with_presets,
)
from labctl.cli.planting import Request, plan_everywhere, plant_everywhere, take_back
from labctl.cli.pods import OPTIONS as POD_OPTIONS
from labctl.cli.pods import Aim, find_pods, pod_options, refuse_known_elsewhere
from labctl.cli.schedules import schedule_options, take_schedule
from labctl.cli.session import Session
from labctl.cli.targets import Chosen
from labctl.errors import ExitCode, LabError, UnsupportedError, UsageError
from labctl.lab.model import Node
from labctl.limits import Gauge
from labctl.report.duration import format_duration
from labctl.report.injections import injected_text
from labctl.report.plans import plan_text, reach_rows
from labctl.report.text import labelled
from node_agent import aliases
from node_agent.api.views import PlanView
from node_agent.errors import Refusal
from node_agent.fault import build_fault
from node_agent.injection import ID_PATTERN, InjectionView
from node_agent.leases import DEFAULT_LEASE_S

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_LEASE = format_duration(DEFAULT_LEASE_S)

RESERVED = {"nodes", "labels", "nodes_labelled", "groups", "one_way", "lease_s", "plan", "injection_id", "within",
            "exceed_limits", "lab", "transport", "json", "help", *POD_OPTIONS}  # fmt: skip


def new_injection_id() -> str:
    """Eight characters of lower-case base32: 40 random bits."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(8))


def seed_of(injection_id: str) -> int:
    """The seed where none is given: as random as the id, the same when the id is given again, short to type."""
    return int.from_bytes(hashlib.sha256(injection_id.encode()).digest()[:4], "big")


class InjectGroup(LabGroup):
    """Its commands are the faults of the catalogue, found when they are asked for, and their aliases."""

    noun = "fault"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(known_faults())

    def known_names(self, ctx: click.Context) -> list[str]:
        return [*known_faults(), *built_aliases()]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click, and the aliases, which the list in the help leaves out."""
        more = [CompletionItem(name) for name in built_aliases() if name.startswith(incomplete)]
        return [*super().shell_complete(ctx, incomplete), *more]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("-", "_")
        known = {*known_faults(), *(built_aliases() if ctx.resilient_parsing else aliases.ALIASES)}
        if name not in known:
            return None
        fault, presets = resolve_name(name)
        return fault_command(fault, name, presets)


def fault_command(fault: AnyFault, name: str = "", presets: Mapping[str, Any] = NOTHING) -> click.Command:
    """The subcommand of a fault, or of another name of it with some parameters preset."""
    parameters = without_need(with_presets(parameters_of(fault), presets))
    clash = RESERVED & {p.name for p in parameters}
    if clash:
        raise ValueError(f"fault {fault.name} has a field {clash.pop()!r}, which is an option of every fault")
    options: list[click.Parameter] = []
    for parameter in parameters:
        options += [option_for(parameter), *(schedule_options(fault) if parameter.name == "schedule" else ())]

    options += [*group_options(fault), *pod_options(fault)]

    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> int:
        return inject(session_of(ctx), fault, options, presets)

    command: click.Command = click.command(
        name or fault.name,
        cls=LabCommand,
        short_help=fault.summary,
        help=_help_of(fault, name, presets),
        epilog="\b\nExamples:\n" + "\n".join(_examples(fault, name, presets)),
        params=options,
    )(_shared_options(run))
    return command


def _help_of(fault: AnyFault, name: str, presets: Mapping[str, Any]) -> str:
    text = f"{fault.summary}\n\nWhat an operator sees: {fault.operator_sees}"
    if name in ("", fault.name):
        return text
    same = shlex.join([fault.name, *option_words(presets)])
    limits = f"\n\nWhere the promise ends: {aliases.ALIASES[name].limits}" if aliases.ALIASES[name].limits else ""
    return f"{aliases.ALIASES[name].promise}\n\nThe same as: {same}{limits}\n\n{fault.name}: {text}"


def _examples(fault: AnyFault, name: str, presets: Mapping[str, Any]) -> list[str]:
    own = name in ("", fault.name)
    lines = example_lines(fault) if own else [inject_line(name, {}), inject_line(fault.name, presets)]
    return [f"  labctl inject {line}" for line in lines]


def _shared_options(function: Any) -> Any:
    for decorator in (
        within_option(),
        click.option(
            "--id",
            "injection_id",
            metavar="ID",
            callback=_check_id,
            help="Id of the injection; giving it again is the same injection.  [default: random]",
        ),
        click.option(
            "--exceed-limits", is_flag=True, help="Even where the lab's limits forbid it: labctl limits."
        ),
        click.option("--plan", is_flag=True, help="Only say what would be done; change nothing."),
        duration_option(required=False, help=f"Lease; when it ends the fault heals.  [default: {_LEASE}]"),
        labels_option("Only nodes with this label, or draw among them; may be repeated: all of them."),
        targets_option(),
    ):
        function = decorator(function)
    return function


def _check_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.match(ID_PATTERN, value):
        raise click.BadParameter(f"{value!r}; allowed: 3 to 32 lower-case letters, digits and hyphens", ctx, param)
    return value


def build_request(
    fault: AnyFault,
    options: Mapping[str, Any],
    presets: Mapping[str, Any] = NOTHING,
    nodes: Sequence[Node] = (),
    aim: Aim | None = None,
) -> tuple[Request, Chosen]:
    """What is asked of which nodes: those of the pods that are aimed at, or those that the options name.

    Raises :class:`UsageError` naming the parameter that is wrong.
    """
    given = {**presets, **given_parameters(options, parameters_of(fault))}
    words = {}
    if scheduled := take_schedule(options) if "schedule" in fault.model_fields else None:
        words["schedule"], given["schedule"] = scheduled
    injection_id = options.get("injection_id") or new_injection_id()
    seed = int(given.get("seed", seed_of(injection_id)))
    if "seed" in fault.model_fields:
        given["seed"] = seed
    targets = aim.targets if aim else find_targets(fault, nodes, options, given, seed)
    by_group = [(_built(fault, {**given, **more}, words), group) for more, group in targets.own]
    return Request(
        id=injection_id,
        fault=fault.name,
        parameters=by_group[0][0] if by_group else _built(fault, {**given, **targets.common}, words),
        lease_s=options.get("lease_s") or 0.0,
        fresh=not options.get("injection_id"),
        own={node.name: parameters for parameters, group in by_group for node in group},
    ), targets.chosen


def _built(fault: AnyFault, given: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    try:
        built: BaseModel = build_fault(fault, given)
    except Refusal as refusal:
        field = refusal.field.split(".")[0]
        what = refusal.message.removeprefix(f"{fault.name}: {refusal.field}: ").removeprefix("Value error, ")
        name = "--" + field.replace("_", "-") if field in fault.model_fields else "parameters"
        name = words.get(field, name)
        raise UsageError(
            f"{name}: {what}",
            refusal.allowed or f"see: labctl inject {fault.name} --help",
        ) from None
    return built.model_dump(mode="json")


def inject(
    session: Session, fault: AnyFault, options: Mapping[str, Any], presets: Mapping[str, Any] = NOTHING
) -> int:
    """Plan on every node, then plant on every node, or on none; within the lab's limits, or not at all."""
    nodes = session.provider().nodes()
    aim = find_pods(session, options, nodes)
    request, chosen = build_request(fault, options, presets, nodes, aim)
    if aim and not request.fresh:
        refuse_known_elsewhere(session, request, nodes)
    with aim.explaining() if aim else nullcontext():
        plans = plan_everywhere(session, chosen.nodes, request)
    new = [node for node in chosen.nodes if node.name in plans]
    blast = Blast.of(session)
    gauges = blast.gauges(session, request.id, new) if new else ()
    if options["plan"]:
        _show_plans(session, request, chosen, plans, gauges, aim=aim)
        return _planned_code(plans, () if options["exceed_limits"] else gauges)
    _refuse_missing(request, plans)
    if not options["exceed_limits"]:
        refuse_exceeded(gauges, "nothing was changed")
    if aim and new:
        aim.look_again()
    with aim.explaining() if aim else nullcontext():
        planted = plant_everywhere(session, chosen.nodes, request)
    if aim and new:
        _look_at_pods(session, aim, request, new)
    if gauges and not options["exceed_limits"]:
        _look_again(session, blast, request, new)
    _show_planted(session, request, chosen, plans, planted, aim=aim)
    return 0


def _look_again(session: Session, blast: Blast, request: Request, new: Sequence[Node]) -> None:
    """Somebody else may have planted at the same time: then each of both takes back what is too much."""
    try:
        refuse_exceeded(blast.gauges(session, request.id, new), "")
    except UsageError as exceeded:
        raise take_back(session, new, request, exceeded) from None


def _look_at_pods(session: Session, aim: Aim, request: Request, new: Sequence[Node]) -> None:
    """A pod may have gone while it was planted, and its container live on for a moment: then it is taken back."""
    try:
        aim.look_again(planted=True)
    except UsageError as moved:
        raise take_back(session, new, request, moved) from None
    except LabError as silent:  # may be because of the fault
        click.echo(f"warning: whether the pods are still where they were is not known: {silent.message}", err=True)


def _planned_code(plans: Mapping[str, PlanView], gauges: Sequence[Gauge]) -> int:
    if any(plan.missing for plan in plans.values()):
        return ExitCode.UNSUPPORTED
    return ExitCode.USAGE if any(one.exceeded for one in gauges) else ExitCode.PASS


def _refuse_missing(request: Request, plans: Mapping[str, PlanView]) -> None:
    lacking = [(node, m) for node, plan in plans.items() for m in plan.missing]
    if not lacking:
        return
    reasons = some((f"{node} lacks {m.capability} ({m.reason})" for node, m in lacking), "; ")
    remedies = some(dict.fromkeys(m.remedy for _, m in lacking if m.remedy), "; ")
    raise UnsupportedError(f"{request.fault} cannot be done: {reasons}; nothing was changed", remedies)


def _show_plans(
    session: Session,
    request: Request,
    chosen: Chosen,
    plans: Mapping[str, PlanView],
    gauges: Sequence[Gauge],
    *,
    aim: Aim | None,
) -> None:
    data = {
        "id": request.id,
        "changed": False,
        **chosen_data(chosen),
        **(aim.data(plans) if aim else {}),
        "limits": [one.data() for one in gauges],
        "plans": _plans_data(plans),
    }
    texts = [plan_text(node, plan, session.width) for node, plan in plans.items()]
    limits = "\n".join(["limits of the lab", *limit_lines(gauges)])
    session.answer(data, "\n\n".join([*_head(chosen, plans, aim), *texts, limits]))


def _show_planted(
    session: Session,
    request: Request,
    chosen: Chosen,
    plans: Mapping[str, PlanView],
    planted: Mapping[str, InjectionView],
    *,
    aim: Aim | None,
) -> None:
    now = dt.datetime.now()
    data = {
        "id": request.id,
        **chosen_data(chosen),
        **(aim.data(plans) if aim else {}),
        "injections": [one.model_dump(mode="json") for one in planted.values()],
        "plans": _plans_data(plans),
    }
    told = _each_reach_once(plans)
    texts = [injected_text(one, told.get(node), now, session.width) for node, one in planted.items()]
    hints = [
        ("watch it", session.command(f"watch {request.id}")),
        ("heal it", session.command(f"recover {request.id}")),
    ]
    session.answer(data, "\n\n".join([*_head(chosen, plans, aim), *texts, "\n".join(labelled(hints, ""))]))


def _head(chosen: Chosen, plans: Mapping[str, PlanView], aim: Aim | None) -> list[str]:
    """How the nodes were found."""
    return ["\n".join(aim.lines(plans))] if aim else chosen_lines(chosen)


def _each_reach_once(plans: Mapping[str, PlanView]) -> dict[str, PlanView]:
    """The plans that say of coverage and warnings what none before them said."""
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for node, plan in plans.items():
        seen.setdefault(tuple(reach_rows(plan)), node)
    return {node: plans[node] for node in seen.values()}


def _plans_data(plans: Mapping[str, PlanView]) -> list[dict[str, Any]]:
    return [{"node": node, **plan.model_dump(mode="json")} for node, plan in plans.items()]


inject_group = InjectGroup(
    "inject",
    help="Plant a fault on one or more nodes. Every fault has a lease and heals by itself when it ends.",
    epilog="Names of another injector are known, too: labctl faults list",
    subcommand_metavar="FAULT --node NODE [OPTIONS]",
)

COMMANDS = (inject_group,)
