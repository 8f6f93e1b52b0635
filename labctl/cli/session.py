"""What every command works with: which lab, how to reach its nodes, how to answer.

The world is behind :class:`Tools`, so that tests run every command against a lab made of plain objects.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import click
from pydantic_core import to_json
from rich.console import Console, RenderableType

from labctl.cli.targets import labelled, named_nodes
from labctl.errors import UsageError
from labctl.lab.model import Node, Provider, Ready
from labctl.nearest import nearest
from labctl.progress import Progress, SilentProgress, progress_for_stderr
from labctl.transport.host_keys import Trusts, nobody

if TYPE_CHECKING:  # gRPC and cryptography are for commands that talk to nodes, not for --help
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cryptography.x509 import Certificate

    from labctl.hardware.injector import HardwareInjector
    from labctl.hardware.keeper import Keeper
    from labctl.lab.remote import Remote
    from labctl.lab.selfcheck import Check
    from labctl.pki import LabAuthority
    from labctl.pods.cluster import Cluster
    from labctl.transport.base import Kind, Transport
    from labctl.transport.client import AgentClient

DEFAULT_LAB = "default"
ENV_LAB = "GROUNDFAULT_LAB"
SLOW_S = 1.0
"""After this long a command says what it waits for."""

PIPE_WIDTH = 1000
"""Columns of a table where there is no terminal: nothing is folded or cut that scripts read."""


class Tools(Protocol):
    """The world as commands see it. :class:`labctl.cli.world.RealTools` is the real one."""

    def list_labs(self) -> Sequence[str]: ...
    def open_lab(self, name: str) -> Provider: ...
    def create_lab(self, name: str, kind: str) -> Provider: ...
    def authority(self, lab: str) -> LabAuthority:
        """The lab's certificate authority. Raises :class:`labctl.errors.LabError` where it has none."""

    def pki_dir(self, lab: str) -> Path:
        """Where the certificates of a lab are kept, whether it is there yet or not."""

    def certificate(self, lab: str, node: Node) -> Certificate | None:
        """The certificate that a node's agent shows now; None where it cannot be seen from here."""

    def transport(self, lab: str, node: Node, kind: Kind) -> Transport: ...
    def ready(self, lab: str) -> Ready:
        """What a provider calls for each node that it has booted or restored."""

    def answering(self, lab: str) -> Ready:
        """A wait for an agent that was just installed; changes nothing on the node."""

    def hardware(
        self, lab: str, node: Node, agent: Callable[[], AgentClient], progress: Progress
    ) -> HardwareInjector | None:
        """The machine below a node, where the lab has a hold of it."""

    def limits_file(self, lab: str) -> Path:
        """Where the limits of a lab are kept."""

    def check_machine(self, progress: Progress) -> tuple[Check, ...]:
        """What this machine has and lacks for labs of virtual machines."""

    def remote(self, node: Node, trusts: Trusts = nobody) -> AbstractContextManager[Remote]:
        """A login on a node, to run commands. `trusts` is asked about a host key that is not known."""

    def cluster(self, kubeconfig: Path | None, context: str) -> Cluster:
        """A Kubernetes cluster; None and "": as kubectl would take them. Raises :class:`UsageError`."""

    def execute(self, argv: Sequence[str]) -> int:
        """Become another program. Only ever returns in tests."""


@dataclass
class Session:
    """One run of labctl. The global options set its first fields, wherever on the line they stand."""

    tools: Tools
    lab: str = DEFAULT_LAB
    transport: Kind | None = None
    """None: as each node's is said to be reached."""

    json: bool = False
    within_s: float | None = None
    """How long a node may take to answer one request; None: what is usual for the request."""

    _provider: Provider | None = field(default=None, init=False)
    _agents: dict[str, AgentClient] = field(default_factory=dict, init=False)
    _keepers: dict[str, Keeper] = field(default_factory=dict, init=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _passwords: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False)

    @property
    def progress(self) -> Progress:
        """Where long work reports to: standard error, or nowhere under --json."""
        return SilentProgress() if self.json else progress_for_stderr()

    @contextmanager
    def patience(self, title: str) -> Iterator[None]:
        """Waiting for nodes: says what for, once it takes long enough to be asked about."""
        done = threading.Event()

        def tell() -> None:
            if not done.wait(SLOW_S):
                with self.progress.task(title):
                    done.wait()

        teller = threading.Thread(target=tell, name="patience", daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()

    def provider(self) -> Provider:
        """The lab that was named. Raises :class:`UsageError` with the nearest name where there is none."""
        if self._provider is None:
            labs = self.tools.list_labs()
            if self.lab not in labs:
                make = f"make it with: {self.command('up')}"
                raise UsageError(f"there is no lab called {self.lab!r}", nearest(self.lab, labs, "labs", make))
            self._provider = self.tools.open_lab(self.lab)
        return self._provider

    def nodes(self, names: Sequence[str] = (), labels: Sequence[str] = ()) -> tuple[Node, ...]:
        """The nodes of these names in this order, each once, that have these labels; nothing said: all."""
        known = self.provider().nodes()
        named = named_nodes(known, names, self.lab) if names else known
        return labelled(named, labels) if labels else named

    @property
    def limits_file(self) -> Path:
        """Where this lab's limits are kept."""
        return self.tools.limits_file(self.lab)

    def node(self, name: str) -> Node:
        """The node of that name."""
        return self.nodes([name])[0]

    def agent(self, node: Node) -> AgentClient:
        """The agent of a node. One connection a node, ended by :meth:`close`."""
        if node.name not in self._agents:
            from labctl.transport.client import AgentClient

            transport = self.tools.transport(self.lab, node, self.transport or node.transport)
            client = AgentClient(self._open.enter_context(transport), within_s=self.within_s)
            self._agents[node.name] = client
        return self._agents[node.name]

    def injections(self, node: Node) -> Keeper:
        """All injections of a node: its agent's, and those in the hardware below it."""
        if node.name not in self._keepers:
            from labctl.hardware.keeper import Keeper

            below = self.tools.hardware(self.lab, node, lambda: self.agent(node), self.progress)
            self._keepers[node.name] = Keeper(lambda: self.agent(node), below, self.provider().kind)
        return self._keepers[node.name]

    def close(self) -> None:
        """End all connections."""
        self._open.close()

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits at a terminal."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def trusts(self, where: str, kind: str, fingerprint: str) -> bool:
        """Ask at the first contact with a server whether its key is right."""
        if not self.can_ask:
            return False
        click.echo(f"{where}: the SSH host key is not known. It is {kind} {fingerprint}", err=True)
        return click.confirm("Is that the right key (ssh-keygen -lf on that host tells)?", err=True)

    def password(self, node: Node) -> str | None:
        """Ask for the password that a node's user needs for sudo; once for each user."""
        with self._asking:
            if self.can_ask and node.ssh_user not in self._passwords:
                question = f"password for sudo of {node.ssh_user} on {node.name}"
                self._passwords[node.ssh_user] = click.prompt(question, hide_input=True, err=True)
            return self._passwords.get(node.ssh_user)

    @property
    def width(self) -> int:
        """Columns to fold prose to; 0 where there is no terminal."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0

    def command(self, text: str) -> str:
        """A labctl command line for this lab, to be shown to the user."""
        return self.for_this_lab(f"labctl {text}")

    def for_this_lab(self, text: str) -> str:
        """A text whose labctl command lines name this lab where they would go to another one."""
        if self.lab == os.environ.get(ENV_LAB, DEFAULT_LAB):
            return text
        return re.sub(r"\blabctl (?=[a-z])", f"labctl --lab {self.lab} ", text)

    def answer(self, data: Any, text: RenderableType | str) -> None:
        """Print the answer to standard output: `data` under --json, `text` otherwise."""
        if self.json:
            click.echo(to_json(data, indent=2, inf_nan_mode="constants"))
        else:
            show(text)


def show(what: RenderableType | str) -> None:
    """Print text or a table to standard output, without trailing blanks."""
    if isinstance(what, str):
        click.echo(what)
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as captured:
        console.print(what, crop=False)
    text = "\n".join(line.rstrip() for line in captured.get().splitlines())
    if text:
        click.echo(text)
