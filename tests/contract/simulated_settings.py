"""Settings of the kernel and configuration files on the simulated machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node_agent.host.settings import ConfigFile

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

KEEPALIVE, SWAPPINESS = "/proc/sys/net/ipv4/tcp_keepalive_time", "/proc/sys/vm/swappiness"
APP, APP_TEXT = "/etc/app/app.conf", b"# the application\nmax_connections = 100\nworkers=4\n"


def texts() -> dict[str, str]:
    """Settings as they are after boot."""
    return {KEEPALIVE: "7200", SWAPPINESS: "60"}


def files() -> dict[str, ConfigFile]:
    """Files as they are at rest."""
    return {APP: ConfigFile(APP_TEXT, 0o640, 1_700_000_000_000_000_000, 1)}


def at_rest(kernel_texts: dict[str, str], config: dict[str, ConfigFile]) -> bool:
    """Whether all of it is as nobody ever changed it."""
    return config == files() and all(kernel_texts[path] == text for path, text in texts().items())


class SimulatedSettings:
    """`host.settings` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def file(self, path: str) -> ConfigFile | None:
        self._h.alive()
        return self._h.kernel.config.get(path)

    def replace(self, path: str, data: bytes, tag: str, mtime_ns: int = 0) -> None:
        self._h.change()
        there = self._h.kernel.config.get(path)
        changed = mtime_ns or int(self._h.kernel.clock * 1e9)
        self._h.kernel.config[path] = ConfigFile(data, there.mode if there else 0o644, changed, 1)

    def sweep(self, path: str, tag: str) -> None:
        self._h.change()

    def remove(self, path: str, tag: str) -> None:
        self._h.change()
        self._h.kernel.config.pop(path, None)
