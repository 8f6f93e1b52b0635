"""Who asks an agent, and from where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """`who` is the name in the certificate, or the user of this machine; `where` an address or a process."""

    who: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.who} at {self.where}" if self.where else self.who
