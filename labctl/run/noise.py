"""Noise: what goes on in any data centre beside the incident. It harms no healthy service and ends by itself.

It is scheduled from the seed before the run, keeps away from the nodes of the problem's faults, and is silent
while the gate, the soak and the challenge measure.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from labctl.errors import LabctlError
from labctl.run.problem import Noise, Problem

Kind = Literal["restart", "loss", "neighbour", "cron", "chatter"]

TOLERANT = ("cron.service", "prometheus-node-exporter.service", "booking-worker.service")
"""Units whose restart nobody minds; those that a node does not have are left alone."""

SHORTEST_S, LONGEST_S = 4.0, 15.0
LOSS_PERCENT = (1.0, 3.0)
NEIGHBOUR_PERCENT = (20.0, 45.0)
UNITS = "backup-"
"""What the transient units of noise are called."""

_LEASE_SLACK_S = 20.0
"""A lease is longer than the disturbance, which is ended on time: the lease is for runners that died."""


class Profile(BaseModel):
    """One disturbance about every `every_s` seconds; None: none at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every_s: float | None


PROFILES: Mapping[Noise, Profile] = {
    "calm": Profile(every_s=None),
    "usual": Profile(every_s=45.0),
    "heavy": Profile(every_s=15.0),
}


class Disturbance(BaseModel):
    """One thing that happens on a node, `at_s` seconds after the noise began, for `lasts_s`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: float
    lasts_s: float
    node: str
    kind: Kind
    detail: str = ""


def away_from(problem: Problem, nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes that noise may be on."""
    taken = {*problem.avoid, *(planted.node for planted in problem.faults)}
    return tuple(node for node in nodes if node not in taken)


def schedule(profile: Noise, seed: int, nodes: Sequence[str], horizon_s: float) -> tuple[Disturbance, ...]:
    """What happens when, over the longest time it may take. Pure; the same seed gives the same noise."""
    every = PROFILES[profile].every_s
    if every is None or not nodes:
        return ()
    rng = random.Random(f"noise/{profile}/{seed}")  # noqa: S311 - a schedule, no secret
    found: list[Disturbance] = []
    now = 0.0
    while True:
        now += rng.uniform(0.5 * every, 1.5 * every)
        lasts = rng.uniform(SHORTEST_S, LONGEST_S)
        if now + lasts > horizon_s:
            return tuple(found)
        kind: Kind = rng.choice(("restart", "loss", "neighbour", "cron", "chatter"))
        found.append(
            Disturbance(at_s=round(now, 1), lasts_s=round(lasts, 1), node=rng.choice(nodes), kind=kind,
                        detail=_detail(kind, rng))
        )  # fmt: skip


def _detail(kind: Kind, rng: random.Random) -> str:
    if kind == "restart":
        return rng.choice(TOLERANT)
    if kind == "loss":
        return f"{rng.uniform(*LOSS_PERCENT):.1f}"
    if kind == "neighbour":
        return f"{rng.uniform(*NEIGHBOUR_PERCENT):.0f}"
    return ""


def script_of(one: Disturbance) -> str:
    """What is run on the node as root; empty for what is planted. It returns at once and ends by itself."""
    seconds = f"{one.lasts_s:.0f}"
    unit = f"{UNITS}{one.at_s * 10:.0f}"
    transient = f"systemd-run --quiet --collect --unit={unit} --property=RuntimeMaxSec={seconds}"
    if one.kind == "restart":
        return f"systemctl is-active --quiet {one.detail} || exit 0; systemctl restart --no-block {one.detail}"
    if one.kind == "cron":
        return f"{transient} --nice=10 sh -c 'tar -cf - /usr/lib /usr/share 2>/dev/null | gzip -1 > /dev/null'"
    if one.kind == "chatter":
        loop = 'while :; do logger -t backup "snapshot chunk $((i = i + 1)) verified, 0 errors"; sleep 0.2; done'
        return f"{transient} sh -c {_quoted(loop)}"
    return ""


def fault_of(one: Disturbance) -> tuple[str, dict[str, object]] | None:
    """The fault that is planted for it, and its parameters."""
    if one.kind == "loss":
        return "packet_loss", {"interface": "lan", "loss_percent": float(one.detail)}
    if one.kind == "neighbour":
        return "cpu_burn", {"workers": 1, "load_percent": float(one.detail), "process_name": "backup"}
    return None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class Hands(Protocol):
    """What noise is made with. All raise :class:`LabctlError`."""

    def run(self, node: str, script: str) -> int:
        """Run a script as root; its status."""

    def plant(self, node: str, fault: str, parameters: Mapping[str, object], lease_s: float) -> str:
        """Plant a fault; its id."""

    def end(self, node: str, injection: str) -> None: ...


class NoiseMaker:
    """Makes the noise of a schedule, in a thread. `note` writes down each disturbance and what became of it."""

    def __init__(
        self, planned: Sequence[Disturbance], hands: Hands, note: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.planned, self._hands, self._note, self._clock = tuple(planned), hands, note, clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._live: list[tuple[float, str, str]] = []

    def start(self) -> None:
        """Begin. Does nothing where there is nothing to do."""
        if self.planned and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="noise", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """No more of it; what stands is ended. Returns when all is quiet. Twice is fine."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._end_until(float("inf"))
            self._settle()
            self._thread = None

    def _run(self) -> None:
        began = self._clock()
        for one in self.planned:
            while (now := self._clock() - began) < one.at_s and not self._over.is_set():
                self._end_until(now)
                self._over.wait(min(0.5, one.at_s - now))
            if self._over.is_set():
                return
            self._do(one, self._clock() - began)
        while self._live and not self._over.wait(0.5):
            self._end_until(self._clock() - began)

    def _do(self, one: Disturbance, now: float) -> None:
        problem = ""
        try:
            if planted := fault_of(one):
                lease = one.lasts_s + _LEASE_SLACK_S
                self._live.append((now + one.lasts_s, one.node, self._hands.plant(one.node, *planted, lease)))
            elif status := self._hands.run(one.node, script_of(one)):
                problem = f"status {status}"
        except LabctlError as error:
            problem = error.message
        self._note("noise", what=one.kind, node=one.node, detail=one.detail, lasts_s=one.lasts_s, problem=problem)

    def _end_until(self, now: float) -> None:
        """End what is over by then. What does not end now has a lease."""
        due = [one for one in self._live if one[0] <= now]
        self._live = [one for one in self._live if one[0] > now]
        for _, node, injection in due:
            try:
                self._hands.end(node, injection)
            except LabctlError as error:
                self._note("noise_left", node=node, injection=injection, problem=error.message)

    def _settle(self) -> None:
        """End what runs on nodes by itself: transient units of ours."""
        nodes = {one.node for one in self.planned if one.kind in ("cron", "chatter")}
        for node in sorted(nodes):
            try:
                status = self._hands.run(node, f"systemctl stop '{UNITS}*.service'")
                problem = f"status {status}" if status else ""
            except LabctlError as error:
                problem = error.message
            if problem:
                self._note("noise_left", node=node, injection="", problem=problem)
