"""The write-ahead journal: what will be done, on disk before it is done.

One file an injection, JSON lines with a checksum each. The file's space is written out when the injection is
planned, so that recovery can record itself on a disk that has filled up since. A line that does not check is
reported, not trusted; its neighbours still count. Closed injections stay for a while as history.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node_agent.errors import StorageError

Record = dict[str, Any]
AfterAppend = Callable[[str, int], None]
"""Called with the injection's id and the number of records after each record that reached the disk."""

SUFFIX = ".journal"
RESERVE_BYTES = 64 * 1024
KEEP_CLOSED = 100


def encode(record: Record) -> bytes:
    """One journal line: CRC-32 of the JSON in hexadecimal, a space, the JSON, a line feed."""
    body = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(data: bytes) -> tuple[list[Record], int]:
    """The records of a journal file and how many lines did not check. Zero bytes are space not yet used."""
    records: list[Record] = []
    corrupt = 0
    for line in data.replace(b"\0", b"").split(b"\n"):
        if not line:
            continue
        try:
            checksum, body = line.split(b" ", 1)
            if int(checksum, 16) != zlib.crc32(body):
                raise ValueError("checksum")
            records.append(json.loads(body))
        except ValueError:
            corrupt += 1
    return records, corrupt


@dataclass
class Entry:
    """The open journal of one injection. Appends are on disk when they return."""

    id: str
    path: Path
    offset: int
    count: int
    after_append: AfterAppend | None = None

    def append(self, record: Record, *, durable: bool = True) -> None:
        """Add a record. Raises :class:`StorageError`.

        It is on the disk when this returns, unless `durable` is false: then it may be lost with the power, and
        what it says is done again or taken back again. The end of this process never loses it.
        """
        line = encode(record)
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                if os.pwrite(fd, line, self.offset) != len(line):
                    raise OSError("short write")
                if durable:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageError(f"the journal {self.path} cannot be written: {error}") from error
        self.offset += len(line)
        self.count += 1
        if self.after_append:
            self.after_append(self.id, self.count)


@dataclass
class Journal:
    """The journals of one agent, in `directory` (open) and `directory`/closed (history)."""

    directory: Path
    after_append: AfterAppend | None = None
    _closed: Path = field(init=False)

    def __post_init__(self) -> None:
        self._closed = self.directory / "closed"

    def create(self, injection_id: str, first: Record) -> Entry:
        """Start the journal of an injection with its first record, space reserved.

        Raises :class:`StorageError` when the disk has no room: then nothing may be changed.
        """
        line = encode(first)
        path = self.directory / f"{injection_id}{SUFFIX}"
        temporary = path.with_suffix(".new")
        try:
            self._closed.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary.open("wb") as file:
                file.write(line + b"\0" * (4 * len(line) + RESERVE_BYTES))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            _sync_directory(self.directory)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise StorageError(
                f"no room for a journal in {self.directory}: {error}; nothing was changed"
            ) from error
        entry = Entry(injection_id, path, len(line), 1, self.after_append)
        if self.after_append:
            self.after_append(injection_id, 1)
        return entry

    def open_entries(self) -> Iterator[tuple[Entry, list[Record], int]]:
        """Each injection that was not closed: where to append, its records, how many lines were corrupt."""
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            data = path.read_bytes()
            records, corrupt = decode(data)
            used = len(data.rstrip(b"\0"))
            entry = Entry(path.stem, path, used, len(records) + corrupt, self.after_append)
            if used and not data[:used].endswith(b"\n"):
                with _reopened(path) as fd:  # a line torn by a crash: end it, so that the next starts afresh
                    os.pwrite(fd, b"\n", used)
                entry.offset += 1
            yield entry, records, corrupt

    def close(self, entry: Entry) -> None:
        """Move a finished journal to the history, and forget the oldest beyond :data:`KEEP_CLOSED`."""
        try:
            with _reopened(entry.path) as fd:
                os.ftruncate(fd, entry.offset)
            entry.path.rename(self._closed / entry.path.name)
            _sync_directory(self.directory)
            history = sorted(self._closed.glob(f"*{SUFFIX}"), key=lambda p: p.stat().st_mtime)
            for old in history[:-KEEP_CLOSED]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"the journal {entry.path} cannot be closed: {error}") from error

    def closed_entry(self, injection_id: str) -> Entry:
        """Where the journal of an ended injection lies, for reading."""
        return Entry(injection_id, self._closed / f"{injection_id}{SUFFIX}", 0, 0)

    def closed_records(self) -> Iterator[tuple[str, list[Record]]]:
        """The history: id and records, oldest first."""
        for path in sorted(self._closed.glob(f"*{SUFFIX}"), key=lambda p: p.stat().st_mtime):
            yield path.stem, decode(path.read_bytes())[0]


@contextmanager
def _reopened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield fd
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
