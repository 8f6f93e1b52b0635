"""setting_changed: a setting of the kernel, of a service's limits, or in a file has a wrong value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.edits import Edit, digest
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.file_edit import FileEdit
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.sysctl_value import SysctlValue, words
from node_agent.steps.unit_takes import UnitTakes

from .settings import find_edit, find_sysctl, find_unit

_UNIT_FILES = "/run/systemd/system"
"""Changes of units that a reboot forgets: systemd.unit(5), "Unit File Load Path"."""


class WrongSetting(Target):
    """The change itself, and the service that takes it. The path of a limit's file still lacks the mark."""

    sysctl: SysctlValue | None = None
    file: FileEdit | None = None
    limit_of: str = ""
    unit: str = ""
    ran: bool = False

    def describe(self) -> str:
        what = self.sysctl or self.file
        taken = f"; {self.unit} takes it" if self.unit else ""
        return f"{what.describe() if what else ''}{taken}"


class SettingChanged(Fault):
    """One setting is wrong: of the kernel (sysctl), a limit of a service, or a key in a configuration file.

    What was there comes back; what was not there goes. What somebody changes while the fault stands is theirs: it
    stays, and the evidence says so. Files keep mode, owner and attributes, and survive a reboot until the agent
    puts them back.
    """

    name: ClassVar[str] = "setting_changed"
    summary: ClassVar[str] = "a sysctl, limit or configuration file has a wrong value"
    operator_sees: ClassVar[str] = "a service that misbehaves, or does not start, from its next restart or at once"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"sysctl": "net.ipv4.tcp_keepalive_time", "value": "15"},
        {"file": "/etc/app/app.conf", "key": "max_connections", "value": "1"},
    )

    sysctl: str = Field(default="", description="setting of the kernel, such as net.core.somaxconn")
    file: str = Field(default="", description="configuration file, with key")
    key: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.@/ -]{0,128}$",
        description="key in the file; it may be new",
    )
    section: str = Field(default="", max_length=128, description="section of the file with the key")
    limit: str = Field(
        default="", description="limit of a service, with unit, such as LimitNOFILE or TasksMax",
        pattern=r"^(Limit[A-Z]{2,10}|TasksMax|Memory(Max|High|SwapMax)|CPUQuota|Nice|OOMScoreAdjust"
        r"|Timeout(Start|Stop)Sec|WatchdogSec|RestartSec)?$",
    )  # fmt: skip
    unit: str = Field(default="", description="the service whose limit it is")
    value: str = Field(min_length=1, max_length=1024, pattern=r"^[^\n\r]*$", description="the wrong value")
    reload_unit: str = Field(default="", description="service that has to take the file at once")
    take: Literal["restart", "reload"] = Field(default="restart", description="how the service takes it")

    def locate(self, reader: Reader, facts: Facts) -> WrongSetting:
        given = [name for name in ("sysctl", "file", "limit") if getattr(self, name)]
        if len(given) != 1:
            raise Refusal("sysctl: name one setting", field="sysctl", allowed="one of sysctl, file, limit")
        for name, goes_with in (("key", "file"), ("section", "file"), ("unit", "limit")):
            if getattr(self, name) and given != [goes_with]:
                raise Refusal(f"{name}: goes with {goes_with}", field=name, allowed=f"{goes_with} and {name}")
        if self.sysctl:
            unit = find_unit(reader, self.reload_unit, "reload_unit") if self.reload_unit else ""
            return self._taken(reader, WrongSetting(sysctl=find_sysctl(reader, self.sysctl, self.value)), unit)
        if self.file:
            if not self.key:
                raise Refusal("key: is missing", field="key", allowed="a key in the file, or a new one")
            unit = find_unit(reader, self.reload_unit, "reload_unit") if self.reload_unit else ""
            edit = find_edit(reader, self.file, (self.section, self.key), self.value)
            return self._taken(reader, WrongSetting(file=edit), unit)
        unit = find_unit(reader, self.unit, "unit")
        text = f"[Service]\n{self.limit}={self.value}\n"
        edit = FileEdit(path=f"{_UNIT_FILES}/{unit}.d/zz.conf", tag="", edits=(Edit(at=0, old="", new=text),),
                        after=digest(text.encode()))  # fmt: skip
        return self._taken(reader, WrongSetting(file=edit, limit_of=unit), unit)

    def _taken(self, reader: Reader, target: WrongSetting, unit: str) -> WrongSetting:
        ran = bool(unit) and reader.services.state(unit).runs
        return target.model_copy(update={"unit": unit, "ran": ran})

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, WrongSetting)
        change = self._change(target, tag)
        mark = MarkFile(name=tag, text=change.describe()[:200])
        if not target.unit:
            return (mark, change)
        before, after = (
            UnitTakes(unit=target.unit, when=when, how=self.take, manager=_is_unit_file(change), ran=target.ran)
            for when in ("revert", "apply")
        )
        return (mark, before, change, after)

    def _change(self, target: WrongSetting, tag: str) -> SysctlValue | FileEdit:
        if target.sysctl:
            return target.sysctl
        assert target.file is not None
        path = f"{_UNIT_FILES}/{target.limit_of}.d/zz-{tag}.conf" if target.limit_of else target.file.path
        return target.file.model_copy(update={"tag": tag, "path": path})

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, WrongSetting)
        warnings = []
        if target.unit and target.ran:
            warnings.append(f"{target.unit} is told to {self.take}, now and when it is put back")
        if target.file and not target.unit:
            warnings.append("nothing reads the file until its service is restarted: reload_unit")
        return PlanNotes(
            backend="sysctl" if target.sysctl else "file", covers=("everybody who reads it from now on",),
            not_covered=() if target.sysctl else ("processes that have read it before",), warnings=tuple(warnings),
        )  # fmt: skip

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, WrongSetting)
        change = self._change(target, tag)
        if isinstance(change, SysctlValue):
            armed = change.stands(reader)
            now = words(reader.read_text(change.path)) if reader.exists(change.path) else "nothing"
            theirs = not armed and now != words(change.was)
            notes: tuple[str, ...] = (f"somebody has set it to {now!r}: that stays",) if theirs else ()
        else:
            armed, notes = _in_file(reader, change)
        if target.unit:
            notes = (*notes, f"{target.unit} is {reader.services.state(target.unit).active}")
        return Evidence(armed=armed, hits=int(armed), notes=notes)


def _in_file(reader: Reader, change: FileEdit) -> tuple[bool, tuple[str, ...]]:
    there = reader.settings.file(change.path)
    if there is None:
        return False, (f"{change.path} is gone",)
    armed = bool(change.standing(there.data))
    untouched = digest(there.data) in (change.before, change.after)
    return armed, () if untouched else ("somebody has changed the file meanwhile: what they changed stays",)


def _is_unit_file(change: SysctlValue | FileEdit) -> bool:
    return isinstance(change, FileEdit) and change.path.startswith(("/etc/systemd/system/", f"{_UNIT_FILES}/"))
