"""Names of the user's SSH configuration, taken apart: where such a host is, who logs in there, and by which way.

What is found is written into the lab, so that a later change of the configuration changes nothing under it.
"""

from __future__ import annotations

import getpass
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labctl.errors import UsageError
from labctl.lab.model import Login

if TYPE_CHECKING:
    import paramiko

USER_CONFIG = Path("~/.ssh/config")

_JUMP = re.compile(r"^(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:@\s]+)(?::(?P<port>\d+))?$")
_DEEPEST = 8


def read_config(path: Path) -> paramiko.SSHConfig:
    """An SSH configuration. Raises :class:`UsageError`."""
    import paramiko

    try:
        return paramiko.SSHConfig.from_path(str(path.expanduser()))
    except (OSError, UnicodeDecodeError, paramiko.ConfigParseError) as error:
        raise UsageError(f"the SSH configuration {path} cannot be read: {error}") from None


def resolve(alias: str, config: paramiko.SSHConfig, source: Path) -> tuple[Login, tuple[Login, ...]]:
    """The login of a host of the configuration, and the jump hosts on the way to it, the nearest first.

    Raises :class:`UsageError` for a name that it does not have and for a way that is a program.
    """
    if not _has(alias, config):
        raise UsageError(f"{source} has no host {alias!r}", "ssh_alias names a Host of the SSH configuration")
    return _login(alias, config, source, depth=0)


def _has(alias: str, config: paramiko.SSHConfig) -> bool:
    """Whether a Host or Match names it by more than `*`."""
    return any(name != "*" and name == alias for name in config.get_hostnames()) or "hostname" in _said(
        alias, config
    )


def _said(alias: str, config: paramiko.SSHConfig) -> dict[str, Any]:
    found: dict[str, Any] = dict(config.lookup(alias))
    if found.get("hostname") == alias:  # what lookup says of a host that has none
        del found["hostname"]
    return found


def _login(alias: str, config: paramiko.SSHConfig, source: Path, depth: int) -> tuple[Login, tuple[Login, ...]]:
    if depth > _DEEPEST:
        raise UsageError(f"{source}: the jump hosts of {alias} never end", "does a ProxyJump lead back to it?")
    said: dict[str, Any] = dict(config.lookup(alias))
    if said.get("proxycommand", "none") != "none":
        raise UsageError(
            f"{source}: host {alias} is reached by ProxyCommand, which cannot be followed",
            "use ProxyJump there, or jump = … in the inventory",
        )
    login = Login(
        address=said["hostname"],
        port=int(said.get("port", 22)),
        user=said.get("user") or getpass.getuser(),
        key=_first_there(said.get("identityfile", [])),
        known_hosts=_known_hosts(said.get("userknownhostsfile", "")),
    )
    way: tuple[Login, ...] = ()
    jumps = said.get("proxyjump", "none")
    for one in () if jumps == "none" else jumps.split(","):
        match = _JUMP.match(one.strip())
        if match is None:
            raise UsageError(f"{source}: host {alias}: ProxyJump {one!r} is no [USER@]HOST[:PORT]")
        hop, before = _login(match["host"].strip("[]"), config, source, depth + 1)
        changes = {k: v for k, v in (("user", match["user"]), ("port", match["port"])) if v}
        hop = Login.model_validate(hop.model_dump() | changes)
        # As ssh does it: only the first of a list may have a way of its own.
        way += (*(before if not way else ()), hop)
    return login, way


def _first_there(files: list[str]) -> Path | None:
    """The first key that exists; None leaves the choice to the SSH library."""
    paths = (Path(file).expanduser() for file in files)
    return next((path for path in paths if path.is_file()), None)


def _known_hosts(said: str) -> Path | None:
    first = said.split(maxsplit=1)[0].strip('"') if said.split() else ""
    return Path(first).expanduser() if first and first not in ("none", "/dev/null") else None
