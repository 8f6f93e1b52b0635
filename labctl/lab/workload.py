"""A workload on the nodes of a lab: deployed after the first boot of all of them, and waited for.

What a workload is, is data of `problems.workloads`; here is what is done with it, over SSH.
"""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from labctl.errors import LabError, UsageError
from labctl.lab import fleet, identity
from labctl.lab.model import LabOptions, Node
from labctl.lab.remote import Remote, connected
from labctl.progress import Progress
from problems.workloads import Check, File, NoSuchWorkload, Web, Workload, find_workload

Login = Callable[[Node], AbstractContextManager[Remote]]

CHECK_S = 30.0
SERVES_S = 90.0
"""How long a service may take to answer after its nodes were restored."""

_PAUSE_S = 0.5
_SAID_LINES = 12


def find(name: str) -> Workload:
    """The workload of that name. Raises :class:`UsageError` naming those that there are."""
    try:
        return find_workload(name)
    except NoSuchWorkload as error:
        raise UsageError(f"--workload: {error}") from None


def key(name: str) -> str:
    """The content hash of what would be deployed now; "" for no workload."""
    return find(name).key if name else ""


def web(name: str) -> Web | None:
    """Where clients reach the workload, where they do."""
    return find(name).web if name else None


def packages(options: LabOptions) -> tuple[str, ...]:
    """The packages that nodes have besides those of every node."""
    return (*options.packages, *find(options.workload).packages) if options.workload else options.packages


def finish(options: LabOptions) -> str:
    """The script that shapes the node image; "" for none."""
    return find(options.workload).image if options.workload else ""


def check(options: LabOptions) -> None:
    """Raise :class:`UsageError` where the workload does not fit on the nodes that are asked for."""
    if not options.workload:
        return
    wanted = find(options.workload)
    names = identity.node_names(options.nodes)
    if missing := [node for node in wanted.nodes if node not in names]:
        raise UsageError(
            f"--nodes: workload {wanted.name} needs {', '.join(missing)}", f"--nodes {len(wanted.nodes)}"
        )
    if options.memory_mib < wanted.memory_mib:
        raise UsageError(f"--memory: workload {wanted.name} needs {wanted.memory_mib} MiB a node")
    if not options.kernel.startswith("debian13") and options.kernel != "lab":
        raise UsageError(f"--kernel: workload {wanted.name} is made of Debian 13's packages", "--kernel debian13")


def deploy(workload: Workload, nodes: Sequence[Node], progress: Progress, login: Login = connected) -> None:
    """Put the workload on the nodes and wait until it is ready.

    Raises :class:`LabError` where a step fails, with what it said, or where the workload is not ready in time,
    naming what is not.
    """
    drawn = {name: secrets.token_urlsafe(24) for name in workload.secrets}
    here = [node for node in nodes if node.name in workload.nodes]
    with ExitStack() as stack, progress.task(f"deploying {workload.name}") as task:
        task.update("logging in")
        remotes: dict[str, Remote] = {}
        fleet.each(here, lambda node: remotes.update({node.name: stack.enter_context(login(node))}))
        task.update("files")
        fleet.each(here, lambda node: _put(remotes[node.name], workload.files.get(node.name, ()), drawn))
        for step in workload.steps:
            task.update(step.title)
            there = [(remotes[node], script) for node, script in step.scripts.items()]
            fleet.each(there, lambda one: _script(*one, step.timeout_s, f"setting up {step.title}"))  # noqa: B023 - used up here
        task.update("waiting until it is ready")
        wait_ready(workload, remotes)


def _put(remote: Remote, files: Sequence[File], drawn: Mapping[str, str]) -> None:
    done = remote.run(
        ("tar", "-x", "-p", "-C", "/", "--no-overwrite-dir"), stdin=io.BytesIO(archive(files, drawn))
    )
    if done.status:
        raise LabError(f"{remote.node.name}: its files could not be written: {done.stderr.strip()}")


def archive(files: Sequence[File], drawn: Mapping[str, str]) -> bytes:
    """The files as a tar for a node's root, with the secrets in their places. Owners are names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            text = file.text
            for name, value in drawn.items():
                text = text.replace(f"@{name}@", value)
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            content = text.encode()
            entry.size, entry.mode, entry.mtime = len(content), file.mode, int(time.time())
            entry.uname, entry.gname = file.owner.split(":")
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _script(remote: Remote, script: str, timeout_s: float, what: str) -> None:
    done = remote.run(("sh", "-c", script), timeout_s=timeout_s)
    if done.status:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-_SAID_LINES:]
        raise LabError(
            f"{remote.node.name}: {what} failed with status {done.status}", "\n".join(said) or "it said nothing"
        )


def wait_ready(
    workload: Workload,
    remotes: Mapping[str, Remote],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until all checks hold, asking all nodes at once. Raises :class:`LabError` naming those that do not."""
    deadline = clock() + workload.ready_within_s
    waiting = list(workload.checks)
    said: dict[Check, str] = {}

    def ask(node: str) -> None:
        for check in [c for c in waiting if c.node == node]:
            try:
                done = remotes[node].run(("sh", "-c", check.script), timeout_s=CHECK_S)
            except LabError as slow:  # a busy node is asked again until the time is up
                said[check] = slow.message
                continue
            said[check] = "" if done.status == 0 else (done.stderr.strip() or done.stdout.strip() or "no")

    while waiting:
        fleet.each(sorted({check.node for check in waiting}), ask)
        waiting = [check for check in waiting if said[check]]
        if waiting and clock() > deadline:
            told = "; ".join(f"{c.node}: {c.what}: {said[c].splitlines()[-1]}" for c in waiting)
            raise LabError(f"workload {workload.name} is not ready after {workload.ready_within_s:g} s: no {told}")
        if waiting:
            sleep(_PAUSE_S)


def wait_serving(url: str, name: str, within_s: float = SERVES_S) -> None:
    """Wait until the workload behind `url` answers. Raises :class:`LabError` with its last answer."""
    import httpx

    there = web(name)
    health = there.health if there else "/"
    deadline = time.monotonic() + within_s
    said = ""
    while True:
        try:
            reply = httpx.get(f"{url}{health}", timeout=10.0, trust_env=False)
            if reply.status_code == httpx.codes.OK:
                return
            said = f"status {reply.status_code}: {reply.text[:200].strip()}"
        except httpx.TransportError as error:
            said = f"{type(error).__name__} {error}".strip()
        if time.monotonic() > deadline:
            raise LabError(f"the service at {url} does not answer within {within_s:g} s: {said}")
        time.sleep(_PAUSE_S)
