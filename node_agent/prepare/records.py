"""The records of prepared disks: one small file each, on disk before anything is done."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from node_agent.errors import StorageError
from node_agent.prepare.model import Prepared

SUFFIX = ".json"


@dataclass(frozen=True)
class Records:
    """A directory of them. Raises :class:`StorageError` where it cannot be used."""

    directory: Path

    def all(self) -> tuple[Prepared, ...]:
        """Every record, by name."""
        names = sorted(path.name for path in self.directory.glob(f"*{SUFFIX}")) if self.directory.is_dir() else []
        found = (self.get(name.removesuffix(SUFFIX)) for name in names)
        return tuple(one for one in found if one)

    def get(self, name: str) -> Prepared | None:
        """The record of that name; None where there is none."""
        path = self._path(name)
        try:
            return Prepared.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise StorageError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None

    def write(self, record: Prepared) -> None:
        """All or nothing, and on the disk when this returns."""
        path = self._path(record.name)
        fresh = path.with_suffix(".new")
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with fresh.open("wb") as handle:
                handle.write(record.model_dump_json(indent=1).encode())
                handle.flush()
                os.fsync(handle.fileno())
            fresh.replace(path)
            self._sync()
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}; nothing was changed") from error

    def remove(self, name: str) -> None:
        """Gone already is fine. The directory goes with its last record."""
        try:
            self._path(name).unlink(missing_ok=True)
            if self.directory.is_dir():
                self._sync()
                if not any(self.directory.iterdir()):
                    self.directory.rmdir()
        except OSError as error:
            raise StorageError(f"{self._path(name)} cannot be removed: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}{SUFFIX}"

    def _sync(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
