"""The words of power: what can be switched, and how a management controller (BMC) is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from labctl.progress import Task
from labctl.secret import VARIABLE, from_environment, from_file

PowerState = Literal["on", "off", "powering on", "powering off", "paused", "unknown"]
"""What Redfish calls PowerState (DSP0268, ComputerSystem), in words."""


class Power(Protocol):
    """The power switch of one node. Each method raises a :class:`labctl.errors.LabctlError`; all are bounded."""

    real: bool
    """A machine that somebody owns: one asks before pulling its plug, and its clock is its own."""

    what: str
    """What is switched, in words."""

    def state(self) -> PowerState:
        """As the hardware says, now."""

    def off(self, graceful: bool, task: Task) -> bool:
        """Cut the power without a shutdown, or ask the system for one; returns when it is off. False: it was."""

    def on(self, task: Task) -> bool:
        """Give power; a node that was off boots from its disks as they are. False: it was on."""


class Bmc(BaseModel):
    """`bmc` of a host in the inventory: where its management controller is. The password is elsewhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(min_length=1, max_length=500)
    user: str = Field(min_length=1, max_length=100)
    password_file: Path | None = None
    password_env: str | None = Field(default=None, pattern=VARIABLE)
    system: str | None = Field(default=None, min_length=1, max_length=200)
    """Which of the controller's systems; not needed where it has one."""
    verify: StrictBool | Path = True
    """Certificates: by the system's authorities, by those of this file, or (false) not at all."""

    @model_validator(mode="before")
    @classmethod
    def _look_at_the_whole(cls, given: Any) -> Any:
        # Here and not in field validators: their errors quote what was given, which may be a secret.
        if not isinstance(given, dict):
            return given
        if "password" in given:
            raise ValueError("a password does not belong in the inventory: name password_file or password_env")
        if (given.get("password_file") is None) == (given.get("password_env") is None):
            raise ValueError("name the password's place: either password_file or password_env")
        if isinstance(given.get("url"), str):
            _refuse_url(given["url"], given.get("verify", True))
        return given

    def beside(self, base: Path) -> Bmc:
        """With paths that were relative to `base` made absolute; `~` is the user's home."""
        file = base / self.password_file.expanduser() if self.password_file else None
        verify = base / self.verify.expanduser() if isinstance(self.verify, Path) else self.verify
        return self.model_copy(update={"password_file": file, "verify": verify})

    def password(self) -> str:
        """Read the password. Raises :class:`UsageError` that names the place and never the content."""
        if self.password_env is not None:
            return from_environment(self.password_env, "bmc.password_env", "export the BMC's password")
        assert self.password_file is not None
        return from_file(self.password_file, "bmc.password_file")


def _refuse_url(url: str, verify: Any) -> None:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # reading it checks it
    except ValueError:
        raise ValueError("url: not a URL; allowed: https://HOST or https://HOST:PORT") from None
    if "@" in parts.netloc:
        raise ValueError("url: no user and no password in it; they are keys of their own")
    if parts.scheme not in ("https", "http") or not parts.hostname or not has_port:
        raise ValueError("url: should be https://HOST or https://HOST:PORT")
    if parts.path.rstrip("/") or parts.query or parts.fragment:
        raise ValueError("url: nothing after the host; Redfish begins at /redfish/v1/ everywhere")
    if parts.scheme == "http" and verify is not False:
        raise ValueError("url: http sends the password in the clear; verify = false accepts that")
