"""The log of who asked this agent for changes: what was asked, when, by whom, and how it ended.

JSON lines, only ever appended to; a full file is put aside and the oldest is deleted, so the size is bounded. A
request is on disk before it is carried out, because it may be what ends this machine; its result is a line of its
own. Each line carries a sum over itself and the line before, so that a line that was changed or taken out shows.

It has nothing to do with the journal of injections, which is for undoing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from node_agent.caller import Caller
from node_agent.content import shown
from node_agent.errors import AgentError, StorageError

log = logging.getLogger(__name__)

Record = dict[str, Any]

READING = frozenset({"Facts", "Probe", "Plan", "List", "Watch", "Residue", "Observe", "Audit"})
"""Methods that change nothing; all others are logged."""

UNDOING = frozenset({"Recover"})
"""Methods that are carried out even where the log cannot be written."""

FILE = "audit.jsonl"
MAX_BYTES = 1 << 20
FILES = 8
"""So many full files are kept beside the one that is written."""

MAX_WHAT = 2000
"""Characters of a request."""

TURNED_AWAY_S = 60.0
"""Of one caller who is not let in there is no more than one line in so many seconds."""


@dataclass(frozen=True)
class Entry:
    """One request. `result` is empty where the agent ended before the request did."""

    number: int
    time_unix_s: float
    boot_id: str
    boottime_s: float
    who: str
    where: str
    method: str
    what: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    message: str = ""
    took_s: float = 0.0


class AuditLog:
    """The log in `directory`. Safe to use from many threads."""

    def __init__(
        self,
        directory: Path,
        boot_id: str,
        boottime: Callable[[], float],
        clock: Callable[[], float] = time.time,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._directory, self._boot_id, self._boottime, self._clock = directory, boot_id, boottime, clock
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._number, self._sum = self._last()
        self._turned_away: dict[str, float] = {}

    @property
    def _file(self) -> Path:
        return self._directory / FILE

    def _files(self) -> list[Path]:
        """Those that are there, the oldest first."""
        kept = [self._file.with_name(f"{FILE}.{number}") for number in range(FILES, 0, -1)]
        return [path for path in (*kept, self._file) if path.exists()]

    def _last(self) -> tuple[int, str]:
        """Number and sum of the newest line that can be read."""
        try:
            for path in reversed(self._files()):
                for line in reversed(path.read_bytes().split(b"\n")):
                    record = _parsed(line)
                    if record is not None:
                        return int(record["n"]), str(record["sum"])
        except OSError:  # the agent has to start whatever this log is like
            log.exception("the log of requests cannot be read")
        return 0, ""

    @contextmanager
    def request(self, method: str, request: Message, caller: Caller) -> Iterator[None]:
        """Log a request and how it ends. Raises :class:`StorageError`, and nothing is done, where it cannot."""
        if method in READING:
            yield
            return
        began = self._boottime()
        number = self._asked(method, _what(request), caller)
        try:
            yield
        except AgentError as error:
            self._ended(number, error.code, error.message, began)
            raise
        self._ended(number, "ok", "", began)

    def event(self, method: str, what: Mapping[str, Any]) -> None:
        """Something that the agent itself did."""
        try:
            self._append(self._record("agent", "", method, dict(what)) | {"result": "ok"})
        except StorageError as error:
            log.exception(error.message)

    def turned_away(self, caller: Caller, why: str) -> None:
        """Somebody who was not let in."""
        now = self._boottime()
        last = self._turned_away.get(caller.who)
        if last is not None and now - last < TURNED_AWAY_S:
            return
        self._turned_away = {who: at for who, at in self._turned_away.items() if now - at < TURNED_AWAY_S}
        self._turned_away[caller.who] = now
        try:
            record = self._record(caller.who, caller.where, "", {}) | {"result": "revoked", "message": why}
            self._append(record)
        except StorageError as error:
            log.exception(error.message)

    def _record(self, who: str, where: str, method: str, what: Record) -> Record:
        return {
            "time": round(self._clock(), 3), "boot": self._boot_id, "up": round(self._boottime(), 3), "who": who,
            "where": where, "method": method, "what": what,
        }  # fmt: skip

    def _asked(self, method: str, what: Record, caller: Caller) -> int:
        try:
            return self._append(self._record(caller.who, caller.where, method, what))
        except StorageError as error:
            if method not in UNDOING:
                raise
            log.exception(error.message)
            return 0

    def _ended(self, number: int, result: str, message: str, began: float) -> None:
        took = round(self._boottime() - began, 3)
        try:
            if number:
                self._append({"of": number, "result": result, "message": message[:MAX_WHAT], "took": took})
        except StorageError as error:  # it is done: to say that it is not would be wrong
            log.exception(error.message)

    def _append(self, record: Record) -> int:
        with self._lock:
            number = self._number + 1
            body = _body({"n": number, **record})
            added = _sum(self._sum, body)
            try:
                self._make_room()
                _write(self._file, _line(body, added))
            except OSError as error:
                raise StorageError(
                    f"{self._file} cannot be written: {error}; nothing was changed", allowed="room in /var/lib"
                ) from error
            self._number, self._sum = number, added
            return number

    def _make_room(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if not self._file.exists() or self._file.stat().st_size < self._max_bytes:
            return
        for number in range(FILES - 1, 0, -1):
            older = self._file.with_name(f"{FILE}.{number}")
            if older.exists():
                older.replace(self._file.with_name(f"{FILE}.{number + 1}"))
        self._file.replace(self._file.with_name(f"{FILE}.1"))

    def read(self, after: int = 0, limit: int = 100) -> tuple[tuple[Entry, ...], int, tuple[str, ...]]:
        """The newest entries, oldest first, the number of the oldest that is kept, and what is wrong."""
        with self._lock:
            found = [(path.name, path.read_bytes()) for path in self._files()]
        entries: dict[int, Entry] = {}
        problems: list[str] = []
        oldest, before, added = 0, 0, ""
        for name, content in found:
            for place, line in enumerate(content.split(b"\n"), 1):
                if not line:
                    continue
                record = _parsed(line)
                if record is None:
                    problems.append(f"{name} line {place} cannot be read")
                    continue
                number = int(record["n"])
                if before and number != before + 1:
                    problems.append(f"{name} line {place}: after number {before} comes {number}")
                elif (before or number == 1) and record["sum"] != _sum(added, _body_of(line)):
                    problems.append(f"{name} line {place}: it, or the line before, is not what was written")
                before, added, oldest = number, str(record["sum"]), oldest or number
                _take(entries, record)
        chosen = [one for one in entries.values() if one.number > after]
        return tuple(chosen[-limit:]), oldest, tuple(problems)


class NoAudit:
    """For an agent without a log: a test's."""

    @contextmanager
    def request(self, method: str, request: Message, caller: Caller) -> Iterator[None]:
        yield

    def turned_away(self, caller: Caller, why: str) -> None:
        """Nobody writes it down."""

    def read(self, after: int = 0, limit: int = 100) -> tuple[tuple[Entry, ...], int, tuple[str, ...]]:
        """Nothing."""
        return (), 0, ()


def _take(entries: dict[int, Entry], record: Record) -> None:
    """A line: of a request, or of how one ended whose own line may be deleted already."""
    if "of" not in record:
        entries[int(record["n"])] = Entry(
            number=int(record["n"]), time_unix_s=float(record.get("time", 0)), boot_id=str(record.get("boot", "")),
            boottime_s=float(record.get("up", 0)), who=str(record.get("who", "")),
            where=str(record.get("where", "")), method=str(record.get("method", "")), what=record.get("what", {}),
            result=str(record.get("result", "")), message=str(record.get("message", "")),
        )  # fmt: skip
    elif record["of"] in entries:
        asked = vars(entries[record["of"]])
        ended = {"result": record.get("result", ""), "message": record.get("message", "")}
        entries[record["of"]] = Entry(**(asked | ended | {"took_s": float(record.get("took", 0))}))


def _what(request: Message) -> Record:
    """A request as data; long texts by their sums, and never longer than is good for a log."""
    data: Record = json_format.MessageToDict(request, preserving_proto_field_name=True)
    try:
        parameters = json.loads(data.pop("parameters_json", "null"))
        if isinstance(parameters, dict):
            data["parameters"] = shown(parameters)
        text = json.dumps(data)
    except (ValueError, RecursionError):
        text = json.dumps({"not understood": str(request)[:MAX_WHAT]})
        return dict(json.loads(text))
    return data if len(text) <= MAX_WHAT else {"begins": text[:MAX_WHAT]}


def _body(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()


def _line(body: bytes, added: str) -> bytes:
    return body[:-1] + b',"sum":"' + added.encode() + b'"}\n'


def _body_of(line: bytes) -> bytes:
    return line[: line.rindex(b',"sum":"')] + b"}"


def _sum(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:16]


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    good = isinstance(record, dict) and isinstance(record.get("n"), int) and isinstance(record.get("sum"), str)
    return record if good and b',"sum":"' in line else None


def _write(path: Path, line: bytes) -> None:
    """Append, and wait for the disk. What a power cut left of a line gets an end first. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        whole = (b"\n" if torn else b"") + line
        if os.write(descriptor, whole) != len(whole):
            raise OSError(28, os.strerror(28))
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
