"""Telling systemd how the agent is, where systemd started it. Source: sd_notify(3)."""

from __future__ import annotations

import os
import socket


def notify_systemd(state: str) -> None:
    """Tell systemd how we are, where it started us: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        if address.startswith("@"):
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), address)


def busy_for(seconds: float) -> None:
    """Something that has a bound of its own is under way: neither the watchdog nor a start or stop runs out."""
    notify_systemd(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")
