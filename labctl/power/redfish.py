"""The power switch of a real machine, by its management controller.

Sources: DMTF DSP0266 (Redfish protocol: actions, tasks), DSP0268 (ComputerSystem: PowerState, Reset).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from labctl.errors import LabError, UnsupportedError, UsageError
from labctl.power.client import ROOT, Answer, Client, NoAnswerError, connected, listed
from labctl.power.model import Bmc, PowerState
from labctl.progress import Task

FORCED_S, GRACEFUL_S, ON_S = 120.0, 600.0, 180.0
"""How long a change may take until PowerState says so: firmware is slow, and shutdowns end services first."""

POLL_S = 1.0
_LONGEST_PAUSE_S = 10.0
_MANY = 64
_RESET = "#ComputerSystem.Reset"
_STATES: Mapping[str, PowerState] = {
    "On": "on", "Off": "off", "PoweringOn": "powering on", "PoweringOff": "powering off", "Paused": "paused",
}  # fmt: skip
_FAILED_TASKS = ("Exception", "Killed", "Cancelled", "Interrupted")
_ENDED_TASKS = ("Completed", *_FAILED_TASKS)


class RedfishPower:
    """See :class:`labctl.power.model.Power`. Each call makes a connection of its own and ends it."""

    real = True

    def __init__(
        self,
        node: str,
        bmc: Bmc,
        connect: Callable[[Bmc], AbstractContextManager[Client]] = connected,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._node, self._bmc, self._connect, self._clock, self._sleep = node, bmc, connect, clock, sleep
        self.what = f"{node} (system {bmc.system} of {bmc.url})" if bmc.system else f"{node} (by {bmc.url})"

    def state(self) -> PowerState:
        """As the controller says, now."""
        with self._connect(self._bmc) as client:
            return _state(client.resource(self._find(client)))

    def off(self, graceful: bool, task: Task) -> bool:
        """`ForceOff`, or `GracefulShutdown`; returns when the controller says Off. False: it was off."""
        kinds = ("GracefulShutdown",) if graceful else ("ForceOff",)
        return self._switch("off", kinds, GRACEFUL_S if graceful else FORCED_S, task)

    def on(self, task: Task) -> bool:
        """`On`, or `ForceOn` where a controller only has that; returns when it says On. False: it was on."""
        return self._switch("on", ("On", "ForceOn"), ON_S, task)

    def _switch(self, wanted: PowerState, kinds: tuple[str, ...], patience_s: float, task: Task) -> bool:
        with self._connect(self._bmc) as client:
            path = self._find(client)
            system = client.resource(path)
            if _state(system) == wanted:
                return False
            kind = self._kind(client, system, kinds)
            deadline = self._clock() + patience_s
            task.update(f"{kind} asked for")
            lost = self._reset(client, system, kind, deadline)
            self._wait(_Change(client, path, wanted, kind, patience_s), deadline, lost, task)
            return True

    def _find(self, client: Client) -> str:
        """The path of the system that is meant. Raises :class:`UsageError` naming those there are."""
        found = client.resource(ROOT).get("Systems")
        paths = list(_members(client, found["@odata.id"])) if isinstance(found, Mapping) else []
        if not paths:
            raise UnsupportedError(
                f"{self._bmc.url}: this BMC has no computer system", "is it that of an enclosure?"
            )
        if self._bmc.system is None:
            if len(paths) == 1:
                return paths[0]
            raise UsageError(
                f"{self._bmc.url}: {len(paths)} systems, and bmc.system does not say which is {self._node}",
                f"bmc.system = one of: {self._names(client, paths)}",
            )
        wanted = self._bmc.system.rstrip("/")
        for path in paths:
            if wanted in (path, path.rsplit("/", 1)[-1]):
                return path
        named = [path for path in paths if client.resource(path).get("Name") == wanted]
        if len(named) == 1:
            return named[0]
        raise UsageError(
            f"{self._bmc.url}: bmc.system: there is no system {wanted!r}",
            f"bmc.system = one of: {self._names(client, paths)}",
        )

    def _names(self, client: Client, paths: list[str]) -> str:
        names = [f"{path.rsplit('/', 1)[-1]} ({client.resource(path).get('Name') or '-'})" for path in paths[:8]]
        return ", ".join(names) + (", …" if len(paths) > 8 else "")

    def _kind(self, client: Client, system: Mapping[str, Any], kinds: tuple[str, ...]) -> str:
        """The first of these reset types that the controller takes."""
        action = _action(system)
        allowed = [str(one) for one in listed(action, "ResetType@Redfish.AllowableValues")]
        info = action.get("@Redfish.ActionInfo")
        if not allowed and isinstance(info, str):
            for parameter in listed(client.resource(info), "Parameters"):
                if isinstance(parameter, Mapping) and parameter.get("Name") == "ResetType":
                    allowed = [str(one) for one in listed(parameter, "AllowableValues")]
        if not action.get("target") or (allowed and not set(kinds) & set(allowed)):
            there = f"it has: {', '.join(allowed)}" if allowed else "it switches no power by Redfish"
            remedy = "leave out --graceful" if "ForceOff" in allowed else "use the machine's own management"
            raise UnsupportedError(f"{self._node}: the BMC does not support {' or '.join(kinds)}; {there}", remedy)
        return next(kind for kind in kinds if not allowed or kind in allowed)

    def _reset(
        self, client: Client, system: Mapping[str, Any], kind: str, deadline: float
    ) -> NoAnswerError | None:
        """Ask for it, once. Returns what was lost where the answer was: the state will tell."""
        try:
            answer = client.post(str(_action(system)["target"]), {"ResetType": kind})
            if answer.status == 202 and answer.location:
                self._follow(client, answer, kind, deadline)
                return None
        except NoAnswerError as lost:
            return lost
        if answer.status >= 400:
            said = answer.complaint()
            text = f"{self._node}: the BMC refuses {kind}: HTTP {answer.status}{': ' + said if said else ''}"
            raise (
                UnsupportedError(text)
                if answer.status in (404, 405, 501)
                else LabError(text, "try again in a minute")
            )
        return None

    def _follow(self, client: Client, first: Answer, kind: str, deadline: float) -> None:
        """Wait for a task monitor to be done: DSP0266, "Asynchronous operations"."""
        answer = first
        while answer.status == 202:
            state = str(answer.body.get("TaskState") or "")
            if state in _ENDED_TASKS:
                break
            if self._clock() >= deadline:
                said = f"its task is {state or 'unfinished'}"
                raise LabError(f"{self._node}: {kind} was accepted and does not complete: {said}", _LOOK)
            self._sleep(min(max(answer.retry_after_s, POLL_S), _LONGEST_PAUSE_S))
            location = answer.location or first.location
            answer = client.get(location)
            answer.location = answer.location or location
        state = str(answer.body.get("TaskState") or "")
        if state in _FAILED_TASKS or (answer.status >= 400 and answer.status not in (404, 410)):
            why = _task_words(answer) or state or f"HTTP {answer.status}"
            raise LabError(f"{self._node}: {kind} was accepted and failed: {why}", _LOOK)

    def _wait(self, change: _Change, deadline: float, lost: NoAnswerError | None, task: Task) -> None:
        """Ask until PowerState is what it should be. A controller that stutters meanwhile is asked again."""
        while True:
            hint = lost.hint if lost else ""
            try:
                state = _state(change.client.resource(change.path))
                if state == change.wanted:
                    return
                last = f"it says {state}"
                task.update(last)
            except LabError as error:
                last, hint = f"it does not answer: {error.message}", error.hint
            if self._clock() >= deadline:
                late = f"{self._node}: not {change.wanted} {change.patience_s:g} s after {change.kind}: {last}"
                raise LabError(late, hint or _LOOK)
            self._sleep(POLL_S)


@dataclass(frozen=True)
class _Change:
    """What was asked of which system, and how long it may take."""

    client: Client
    path: str
    wanted: PowerState
    kind: str
    patience_s: float


_LOOK = "look at the BMC's own event log; `labctl power NODE status` shows the state"


def _state(system: Mapping[str, Any]) -> PowerState:
    return _STATES.get(str(system.get("PowerState")), "unknown")


def _action(system: Mapping[str, Any]) -> Mapping[str, Any]:
    actions = system.get("Actions")
    action = actions.get(_RESET) if isinstance(actions, Mapping) else None
    return cast("Mapping[str, Any]", action) if isinstance(action, Mapping) else {}


def _members(client: Client, path: str) -> Iterator[str]:
    """The paths of a collection, page by page, at most so many."""
    count = 0
    while path:
        page = client.resource(path)
        for member in listed(page, "Members"):
            if isinstance(member, Mapping) and isinstance(member.get("@odata.id"), str):
                yield str(member["@odata.id"]).rstrip("/")
                count += 1
        path = str(page.get("Members@odata.nextLink") or "") if count < _MANY else ""


def _task_words(answer: Answer) -> str:
    messages = [m for m in listed(answer.body, "Messages") if isinstance(m, Mapping)]
    return "; ".join(str(m["Message"]) for m in messages if m.get("Message"))[:300] or answer.complaint()
