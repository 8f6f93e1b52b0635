"""The life of the agent: recover what an earlier process left, serve, and recover everything before it ends."""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from node_agent.host import Host
from node_agent.host.notify import notify_systemd
from node_agent.version import VERSION

if TYPE_CHECKING:
    from node_agent.injector import Injector
    from node_agent.service import Service

log = logging.getLogger("node_agent")

TICK_S = 0.5
GRACE_S = 5.0
PROBE_S = 60.0
"""A probe that runs when the agent ends is waited for so long; it takes away what it made."""

EXIT_BROKEN = 70
NODE_NAME = r"[a-z][a-z0-9-]{0,30}"


class _CannotServe(Exception):
    """One line for whoever started the agent."""


@dataclass(frozen=True)
class Settings:
    """Where the agent finds and keeps things. `listen` as gRPC writes addresses; empty: every address."""

    config: Path = Path("/etc/groundfault")
    state: Path = Path("/var/lib/groundfault")
    run: Path = Path("/run/groundfault")
    listen: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """From the options of the command line, see :data:`node_agent.main.HELP`."""
        paths = {name: Path(options[name]) for name in ("config", "state", "run") if name in options}
        return cls(**paths, listen=options.get("listen", ""))


def serve(options: Mapping[str, str], make_host: Callable[[], Host] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. `make_host` is for tests."""
    settings = Settings.of(options)
    _log_to_stderr()
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        if make_host is None:
            _refuse_others_than_root(os.geteuid())
        node = _node_name(settings.config / "node")
        with _only_one(settings.state):
            _run(node, settings, make_host or _real_host, ended)
    except _CannotServe as error:
        log.critical("%s", error)
        return EXIT_BROKEN
    return 0


def _run(node: str, settings: Settings, make_host: Callable[[], Host], ended: threading.Event) -> None:
    from node_agent.injector import Injector

    host = make_host()
    injector = Injector(host, settings.state, node)
    for view in injector.start():
        log.warning("injection %s of an earlier process: %s %s", view.id, view.state, "; ".join(view.residue))
    # Only now the imports that take long on a slow machine: recovery comes first.
    from node_agent.audit import AuditLog
    from node_agent.prepare.disks import Preparer
    from node_agent.service import Service

    preparer = Preparer(host, settings.state, lambda: [view.id for view in injector.injections()])
    audit = AuditLog(settings.state / "audit", host.boot_id(), host.boottime)
    service = Service(injector, host, node, preparer=preparer, audit=audit)
    with ExitStack() as edges:
        edges.callback(_recover_all, injector)
        edges.enter_context(_edges(service, settings))
        edges.enter_context(_ticking(injector))
        notify_systemd("READY=1")
        audit.event("start", {"version": VERSION, "node": node})
        edges.callback(audit.event, "end", {})
        log.info("node-agent %s serves node %s", VERSION, node)
        threading.Thread(target=_probe, args=(injector,), name="probe", daemon=True).start()
        ended.wait()
        notify_systemd("STOPPING=1")
        log.info("ending: recovering everything")
        service.close()
        _recover_all(injector)
        if not injector.probing.end(PROBE_S):
            log.warning("a probe did not end within %g s", PROBE_S)


def _recover_all(injector: Injector) -> None:
    """Also called after the edges have closed, for a request that was under way meanwhile."""
    for view in injector.recover(None, "agent stopped"):
        log.info("injection %s: %s %s", view.id, view.state, "; ".join(view.residue))


@contextmanager
def _edges(service: Service, settings: Settings) -> Iterator[None]:
    # gRPC core's own lines on standard error tell whom it turned away, and why.
    os.environ.pop("GRPC_VERBOSITY", None)
    from node_agent.local import LocalServer
    from node_agent.server import DEFAULT_LISTEN, TlsFiles, start_server

    with ExitStack() as started:
        try:
            local = LocalServer(service, settings.run / "agent.sock")
            local.start()
            started.callback(local.stop)
            tls = TlsFiles.read(settings.config / "tls")
            if tls:
                server, port = start_server(
                    service, tls, settings.listen or DEFAULT_LISTEN, settings.config / "tls"
                )
                started.callback(lambda: server.stop(GRACE_S).wait(2 * GRACE_S))
                log.info("listening for gRPC on port %d", port)
            else:
                log.warning("no certificates in %s: only SSH reaches this agent", settings.config / "tls")
        except (OSError, ValueError) as error:
            raise _CannotServe(str(error)) from None
        yield


@contextmanager
def _ticking(injector: Injector) -> Iterator[None]:
    """Run the leases, and tell systemd's watchdog that they run."""
    done = threading.Event()
    period = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 / 4

    def tick() -> None:
        fed = time.monotonic()
        while not done.wait(TICK_S):
            try:
                injector.tick()
            except Exception:
                log.exception("a bug in the lease of an injection")
            if period and time.monotonic() - fed >= period:
                fed = time.monotonic()
                notify_systemd("WATCHDOG=1")

    thread = threading.Thread(target=tick, name="leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _probe(injector: Injector) -> None:
    """Fill the injector's memory of what this kernel can do, so that the first plan need not wait."""
    began = time.monotonic()
    try:
        found = injector.capabilities()
    except Exception:
        log.exception("a bug in a probe")
        return
    lacking = [c for c in found.values() if not c.available]
    log.info(
        "%d of %d probes succeeded in %.1f s", len(found) - len(lacking), len(found), time.monotonic() - began
    )
    for one in lacking:
        log.info("lacks %s: %s", one.name, one.reason)


def _real_host() -> Host:
    from node_agent.host.real import RealHost

    _work_where_init_does()
    return RealHost()


def _refuse_others_than_root(uid: int) -> None:
    if uid != 0:
        raise _CannotServe(
            f"the agent has to run as root and runs as user {uid}: what it plants and takes back belongs to the "
            "kernel; start it by its unit: systemctl start groundfault-agent"
        )


def _work_where_init_does() -> None:
    """What is mounted here has to be what the node has mounted: repairs unmount and mount."""
    from node_agent.host.mount_namespace import join_mounts_of

    try:
        if join_mounts_of(Path("/proc/1")):
            log.info("left the mount namespace that the unit had made, for that of the node")
    except PermissionError as error:
        log.warning("what is mounted here may not be what the node has mounted: %s", error)
    except OSError as error:
        raise _CannotServe(f"the mount namespace of the node cannot be joined: {error}") from None


def _node_name(path: Path) -> str:
    try:
        name = path.read_text().strip()
    except OSError as error:
        raise _CannotServe(f"the node's name cannot be read: {error}") from None
    if not re.fullmatch(NODE_NAME, name):
        raise _CannotServe(f"{path} holds {name!r}, which is not the name of a node")
    return name


@contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """Two agents would undo each other's injections: the second one does not start."""
    path = state / "agent.lock"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _CannotServe(f"the state directory cannot be used: {error}") from None
    with os.fdopen(descriptor) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _CannotServe(f"another agent is running: it holds {path}") from None
        yield


class _JournalFormat(logging.Formatter):
    """Plain lines; the priority in front only where journald reads it: sd-daemon(3)."""

    _PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if "JOURNAL_STREAM" not in os.environ:
            return f"{record.levelname.lower()}: {text}"
        mark = f"<{self._PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(mark + line for line in text.splitlines())


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JournalFormat("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    faulthandler.enable()
