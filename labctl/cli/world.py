"""The real world behind the commands: labs on disk, agents over gRPC or SSH, logins, programs.

Imports are inside, because `labctl --help` and shell completion should not wait for gRPC and cryptography.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from labctl.lab.model import Node, Provider, Ready
from labctl.progress import Progress
from labctl.transport.host_keys import Trusts, nobody

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.x509 import Certificate

    from labctl.hardware.injector import HardwareInjector
    from labctl.lab.remote import Remote
    from labctl.lab.selfcheck import Check
    from labctl.pki import LabAuthority
    from labctl.pods.cluster import Cluster
    from labctl.transport.base import Kind, Transport
    from labctl.transport.client import AgentClient

T = TypeVar("T")

CERTIFICATE_TIMEOUT_S = 5.0

READY_TIMEOUT_S = 600.0
"""How long a node may take to boot and probe its kernel: three emulated ones at once are slow."""

ANSWER_TIMEOUT_S = 180.0
"""How long an agent may take to start: importing gRPC on an emulated node is slow."""


def _warn_of_own(lab: str, authority: LabAuthority) -> None:
    """Said once a run, whatever is done: without this certificate nothing can be done."""
    import click

    from labctl.cli.certificates import told

    ends = authority.client_certificate().not_valid_after_utc
    if line := told("the certificate of this machine", ends, f"labctl --lab {lab} operator renew"):
        click.echo(f"warning: {line}", err=True)


class RealTools:
    """:class:`labctl.cli.session.Tools` for real. What all nodes of a lab share is read once a run."""

    def __init__(self) -> None:
        self._shared = threading.Lock()
        self._known: dict[tuple[str, str], Any] = {}

    def _once(self, what: str, lab: str, make: Callable[[], T]) -> T:
        with self._shared:
            if (what, lab) not in self._known:
                self._known[what, lab] = make()
            return cast("T", self._known[what, lab])

    def list_labs(self) -> Sequence[str]:
        from labctl.lab import store

        return store.list_labs()

    def open_lab(self, name: str) -> Provider:
        from labctl.lab import store

        return store.open_lab(name)

    def create_lab(self, name: str, kind: str) -> Provider:
        from labctl.lab import store

        return store.create_lab(name, kind)

    def authority(self, lab: str) -> LabAuthority:
        from labctl.pki import LabAuthority

        return LabAuthority.load(self.pki_dir(lab))

    def pki_dir(self, lab: str) -> Path:
        from labctl.lab import store

        return store.lab_dir(lab) / "pki"

    def certificate(self, lab: str, node: Node) -> Certificate | None:
        from labctl.transport.diagnose import shown_certificate

        return shown_certificate(node, self.authority(lab), CERTIFICATE_TIMEOUT_S)

    def transport(self, lab: str, node: Node, kind: Kind) -> Transport:
        from labctl.transport.connect import connect, credentials_of

        if kind == "ssh":
            return connect(node, None, kind)
        authority = self._once("authority", lab, lambda: self.authority(lab))
        self._once("warning", lab, lambda: _warn_of_own(lab, authority))
        return connect(node, authority, kind, self._once("key", lab, lambda: credentials_of(authority)))

    def ready(self, lab: str) -> Ready:
        from labctl.transport.ready import make_ready

        def ready(node: Node) -> None:
            make_ready(self.authority(lab), READY_TIMEOUT_S)(node)

        return ready

    def answering(self, lab: str) -> Ready:
        from labctl.lab.answering import make_answering

        return make_answering(lambda node: self.transport(lab, node, node.transport), ANSWER_TIMEOUT_S)

    def hardware(
        self, lab: str, node: Node, agent: Callable[[], AgentClient], progress: Progress
    ) -> HardwareInjector | None:
        provider = self._once("provider", lab, lambda: self.open_lab(lab))
        if provider.kind != "qemu":
            return None
        from labctl.hardware.wiring import injector_of
        from labctl.lab.qemu import QemuLab

        assert isinstance(provider, QemuLab)
        return injector_of(provider, node, agent, self.ready(lab), progress)

    def limits_file(self, lab: str) -> Path:
        from labctl.lab import store

        return store.lab_dir(lab) / "limits.json"

    def check_machine(self, progress: Progress) -> tuple[Check, ...]:
        from labctl.lab.selfcheck import check_machine

        return check_machine(progress)

    def remote(self, node: Node, trusts: Trusts = nobody) -> AbstractContextManager[Remote]:
        from labctl.lab.remote import connected

        return connected(node, trusts)

    def cluster(self, kubeconfig: Path | None, context: str) -> Cluster:
        from labctl.pods.cluster import KubernetesCluster

        return KubernetesCluster(kubeconfig, context)

    def execute(self, argv: Sequence[str]) -> int:
        os.execvp(argv[0], list(argv))  # noqa: S606 - argv, never a string
