"""One run: the world put together for a problem and a solver, the episode, its record."""

from __future__ import annotations

import datetime as dt
import json
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from labctl.errors import NodeDirtyError, UsageError
from labctl.hardware.keeper import Keeper
from labctl.lab.model import Node
from labctl.run.confined import NodeTool
from labctl.run.diary import LEDGER, RecordDiary
from labctl.run.episode import Shortcut, Solver, Timing, run_episode
from labctl.run.hardware_actions import HardwareActions, Machines
from labctl.run.load_process import LoadProcess
from labctl.run.lock import run_lock
from labctl.run.noise import NoiseMaker, away_from, schedule
from labctl.run.problem import Noise, Problem, Script, Surface
from labctl.run.record import RecordWriter, Run
from labctl.run.shells import Shells
from labctl.run.solvers.access import Access
from labctl.run.solvers.base import Setting
from labctl.run.solvers.command import CommandSolver
from labctl.run.solvers.desk import Tool
from labctl.run.solvers.manual import ManualSolver
from labctl.run.solvers.none import NoSolver
from labctl.run.solvers.scripted import ScriptedSolver, submitting
from labctl.run.verdict import Verdict
from labctl.run.world import LEASE_MORE_S, LabWorld, boot_id

SOLVERS = ("reference", "alternative", "decoy:N", "none", "manual")
LOG = "solver.log"
_VERSIONS = "uname -r; . /etc/os-release; echo \"$PRETTY_NAME\"; dpkg-query -W -f '${Package} ${Version}\\n'"


class Site(Protocol):
    """The lab as a run needs it. All raise :class:`LabctlError`."""

    @property
    def lab(self) -> str: ...
    @property
    def lock(self) -> Path:
        """The file of the lab's lock for runs."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes and how they are reached now."""

    def keeper(self, node: Node) -> Keeper: ...
    def machines(self, keepers: Mapping[str, Keeper], boot_id: Callable[[str], str]) -> Machines:
        """What hands do hardware actions with."""

    def ready(self, node: Node) -> None:
        """Wait for a node's agent after a boot, and set its clock."""

    def reset(self) -> None: ...
    def url(self) -> str:
        """Where clients reach the service now."""

    def workload(self) -> str:
        """The workload that is deployed; "" for none."""


@dataclass(frozen=True)
class Request:
    """What is to be run. None: as the problem says. `solver`: one of :data:`SOLVERS`, or a command line."""

    problem: Problem
    solver: str
    seed: int
    record: Path
    catalogue: str
    noise: Noise | None = None
    surface: Surface | None = None
    limit_s: float | None = None
    reset: bool = True
    timing: Timing = field(default_factory=Timing)
    script: Script | None = None
    """What the solver does, where `solver` is only its name."""

    shortcut: Shortcut = field(default_factory=Shortcut)

    def asked(self) -> Problem:
        """The problem with what was asked for in its place."""
        changed = {"noise": self.noise, "surface": self.surface, "limit_s": self.limit_s}
        return self.problem.model_copy(update={k: v for k, v in changed.items() if v is not None})


def perform(request: Request, site: Site, tell: Callable[[str, dict[str, object]], None]) -> Verdict:
    """Run it. Whatever happens, the lab is recovered, and the record has a verdict."""
    problem = request.asked()
    check_solver(request.solver, problem)
    if site.workload() != problem.workload:
        has = f"has workload {site.workload()!r}" if site.workload() else "has no workload"
        hint = f"labctl up --lab NAME --workload {problem.workload}"
        raise UsageError(f"{problem.name} runs on workload {problem.workload!r}, lab {site.lab} {has}", hint)
    run = Run(
        id=f"{problem.name}-{secrets.token_hex(4)}", problem=problem.name, catalogue=request.catalogue,
        solver=request.solver, noise=problem.noise, surface=problem.surface, seed=request.seed, lab=site.lab,
        started=dt.datetime.now(dt.UTC), limit_s=problem.limit_s,
    )  # fmt: skip
    with run_lock(site.lock, site.lab, f"a run of {problem.name}"):
        with RecordWriter(request.record, run, time.monotonic) as record:
            diary = RecordDiary(record, tell)
            world = _world(request, problem, site, diary)
            verdict, aborted = _episode(request, problem, world, diary)
            record.finish(verdict, dt.datetime.now(dt.UTC), aborted)
            return verdict


def _episode(request: Request, problem: Problem, world: LabWorld, diary: RecordDiary) -> tuple[Verdict, str]:
    try:
        verdict = run_episode(problem, world, diary, request.timing, request.shortcut)
    except KeyboardInterrupt:
        diary.record.finish(
            Verdict(declared=False, void="interrupted twice"), dt.datetime.now(dt.UTC), "interrupted"
        )
        raise NodeDirtyError(
            "interrupted while it recovered: faults may still stand", "labctl recover --all, or labctl reset"
        ) from None
    return verdict, "interrupted" if verdict.void == "interrupted" else ""


def _world(request: Request, problem: Problem, site: Site, diary: RecordDiary) -> LabWorld:
    nodes = site.nodes()
    keepers = {node.name: site.keeper(node) for node in nodes}
    shells = Shells(site.nodes)
    artifacts = request.record / "artifacts"

    def ready(name: str) -> None:
        site.ready(next(node for node in site.nodes() if node.name == name))

    def booted(name: str) -> None:
        world.booted(name)

    hands = HardwareActions(
        shells.nodes, site.machines(keepers, lambda name: boot_id(shells, name)), diary.event, booted
    )
    access = Access(shells, root=problem.surface == "root")
    tools: dict[str, Tool] = {"hardware": hands}
    if problem.surface == "confined":
        tools["node"] = NodeTool(shells)
    setting = Setting(problem, site.nodes, access, tools, diary.event, artifacts / LOG)
    planned = schedule(problem.noise, request.seed, away_from(problem, shells.nodes), problem.limit_s)
    plan = problem.clients or f"problems.workloads.{problem.workload}.clients:load_plan"
    world = LabWorld(
        lab=shells, keepers=keepers, load=LoadProcess(plan, site.url, request.seed, artifacts / LEDGER),
        solver=make_solver(request, setting), access=access, hands=hands,
        noise=NoiseMaker(planned, _NoiseHands(shells, keepers), diary.event), note=diary.event,
        lease_s=problem.limit_s + LEASE_MORE_S, reset=site.reset if request.reset else None, ready=ready,
        prepared=lambda: _versions(shells, diary),
    )  # fmt: skip
    return world


class _NoiseHands:
    """See :class:`labctl.run.noise.Hands`."""

    def __init__(self, lab: Shells, keepers: Mapping[str, Keeper]) -> None:
        self._lab, self._keepers = lab, keepers

    def run(self, node: str, script: str) -> int:
        return self._lab.sh(node, script).status

    def plant(self, node: str, fault: str, parameters: Mapping[str, object], lease_s: float) -> str:
        return self._keepers[node].apply(f"x{secrets.token_hex(6)}", fault, parameters, lease_s).id

    def end(self, node: str, injection: str) -> None:
        self._keepers[node].recover(ids=(injection,))


def _versions(lab: Shells, diary: RecordDiary) -> None:
    """What the nodes run, for whoever compares runs."""
    with ThreadPoolExecutor(max_workers=max(1, len(lab.nodes))) as pool:
        said = pool.map(lambda node: lab.sh(node, _VERSIONS).stdout.splitlines(), lab.nodes)
        found = dict(zip(lab.nodes, said, strict=True))
    data = {n: {"kernel": t[0], "os": t[1], "packages": t[2:]} for n, t in found.items() if len(t) > 2}
    diary.record.artifact("versions.json", json.dumps(data, indent=1).encode())
    diary.event("versions", kernels={node: one["kernel"] for node, one in data.items()})


def check_solver(name: str, problem: Problem) -> None:
    """Raises :class:`UsageError` for a solver that there is not."""
    number = _decoy(name)
    if number is not None and not 1 <= number <= len(problem.decoys):
        raise UsageError(
            f"--solver {name}: {problem.name} has {len(problem.decoys)} decoys", "decoy:1 is the first"
        )
    if name == "alternative" and problem.alternative is None:
        raise UsageError(f"--solver alternative: {problem.name} has none", "--solver reference")
    if number is None and name not in SOLVERS:
        argv = shlex.split(name)
        if not argv or shutil.which(argv[0]) is None:
            raise UsageError(
                f"--solver: {argv[0] if argv else ''!r} is no command", f"a command line, or {', '.join(SOLVERS)}"
            )


def make_solver(request: Request, setting: Setting) -> Solver:
    """The solver that was asked for."""
    problem, number = setting.problem, _decoy(request.solver)
    if request.script is not None:
        return ScriptedSolver(setting, request.script)
    if number is not None:
        return ScriptedSolver(setting, problem.decoys[number - 1].script)
    if request.solver == "reference":
        return ScriptedSolver(setting, submitting(problem.reference, problem))
    if request.solver == "alternative" and problem.alternative is not None:
        return ScriptedSolver(setting, submitting(problem.alternative, problem))
    if request.solver == "none":
        return NoSolver()
    if request.solver == "manual":
        return ManualSolver(setting)
    return CommandSolver(setting, shlex.split(request.solver))


def _decoy(name: str) -> int | None:
    kind, _, number = name.partition(":")
    return int(number) if kind == "decoy" and number.isdigit() else None
