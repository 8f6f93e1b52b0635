"""Making a lab's nodes on disk: overlays on the image, data disks, identities. Nothing runs yet."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from labctl.lab import identity, ports, workload
from labctl.lab.files import link_or_copy, write_atomic
from labctl.lab.image import Image
from labctl.lab.machine import Machine, Places
from labctl.lab.model import LabOptions, Node
from labctl.lab.state import Ports, Record
from labctl.lab.tools import run
from labctl.pki import LabAuthority

SSH_PORT, AGENT_PORT = 22, 7443


def machines(directory: Path, record: Record) -> tuple[Machine, ...]:
    """The machines of a lab, as its record says."""
    return tuple(
        Machine(
            lab=record.name,
            index=index,
            places=Places(directory / "nodes" / name, record.run_dir, name),
            kernel=directory / "kernel",
            initrd=directory / "initrd",
            accelerator=record.accelerator,
            memory_mib=record.options.memory_mib,
            cpus=record.options.cpus,
            arguments=record.options.kernel_arguments,
            internet=record.options.internet,
            forwards=forwards(at, record.options),
        )
        for index, (name, at) in enumerate(
            zip(identity.node_names(record.options.nodes), record.ports, strict=True), 1
        )
    )


def forwards(at: Ports, options: LabOptions) -> tuple[tuple[int, int], ...]:
    """Pairs of a loopback port and the node's port that it leads to."""
    always = ((at.ssh, SSH_PORT), (at.agent, AGENT_PORT))
    web = workload.web(options.workload)
    return (*always, (at.web, web.port)) if web and at.web else always


def choose_ports(options: LabOptions) -> tuple[Ports, ...]:
    """Free loopback ports for each node, with one more for the node where a workload is reached."""
    web = workload.web(options.workload)
    names = identity.node_names(options.nodes)
    counts = [3 if web and name == web.node else 2 for name in names]
    numbers = list(ports.choose(sum(counts)))
    return tuple(Ports.of([numbers.pop() for _ in range(count)]) for count in counts)


def url(port: int) -> str:
    """Where a forwarded web port is; "" for none."""
    return f"http://127.0.0.1:{port}" if port else ""


def web_url(record: Record) -> str:
    """Where the lab's workload is reached from here; "" where there is none."""
    return next((url(each.web) for each in record.ports if each.web), "")


def nodes(directory: Path, record: Record) -> tuple[Node, ...]:
    """The nodes of a lab, as the control side reaches them."""
    return tuple(
        Node(
            name=name,
            address="127.0.0.1",
            ssh_port=at.ssh,
            ssh_key=directory / "ssh_key",
            known_hosts=directory / "known_hosts",
            agent_port=at.agent,
            lab_addresses=identity.lan_addresses(index),
            labels=record.labels.get(name, {}),
        )
        for index, (name, at) in enumerate(
            zip(identity.node_names(record.options.nodes), record.ports, strict=True), 1
        )
    )


def make_nodes(directory: Path, record: Record, image: Image) -> None:
    """Make all disks and identities anew; what was there is lost.

    The lab keeps links to the image's files, so that the cache can be deleted any time.
    """
    shutil.rmtree(directory / "nodes", ignore_errors=True)
    for source, name in ((image.disk, "base.qcow2"), (image.kernel, "kernel"), (image.initrd, "initrd")):
        link_or_copy(source, directory / name)
    login = identity.kept_key(directory / "ssh_key").public
    authority = LabAuthority.ensure(directory / "pki", record.name)
    for machine in machines(directory, record):
        at = machine.places
        at.node.mkdir(parents=True, mode=0o700)
        base = ("-b", str(directory / "base.qcow2"), "-F", "qcow2")
        run(
            ("qemu-img", "create", "-q", "-f", "qcow2", *base, str(at.root_disk)),
            "making a system disk",
            timeout=60,
        )
        size = f"{record.options.data_mib}M"
        run(("qemu-img", "create", "-q", "-f", "qcow2", str(at.data_disk), size), "making a data disk", timeout=60)
        # A bare node is as a machine is that somebody owns: the install brings name and certificates.
        tls = authority.node_files(machine.name) if record.options.agent else {}
        host_key = identity.kept_key(at.host_key)
        files = identity.identity_files(
            record.name, machine.index, record.options, login=login, host_key=host_key, tls=tls
        )
        write_atomic(at.identity, identity.identity_tar(files))


def write_known_hosts(directory: Path, record: Record) -> None:
    """Each node's forwarded port with the one key it may show there."""
    there: Sequence[Machine] = machines(directory, record)
    hosts = [
        ("127.0.0.1", at.ssh, identity.kept_key(machine.places.host_key).public)
        for machine, at in zip(there, record.ports, strict=True)
    ]
    write_atomic(directory / "known_hosts", identity.known_hosts(hosts), 0o644)
