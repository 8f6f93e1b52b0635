"""`labctl node prepare-disk`: a disk for faults on a machine whose disks are not under device mapper."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from labctl.cli.base import pass_session
from labctl.cli.node import node_group
from labctl.cli.options import node_argument
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.report.text import PlainTable
from node_agent.prepare.model import Request

if TYPE_CHECKING:
    from node_agent.prepare.messages import DiskView, PrepareResult

_UNITS = {"M": 1, "G": 1024, "T": 1024**2}


class SizeType(click.ParamType[int]):
    """A size with a unit; gives MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,6})([MGT])(?:iB)?", str(value))
        if not found:
            self.fail(f"{value!r} is no size; allowed: a number and M, G or T, such as 1G", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@node_group.command("prepare-disk")
@node_argument()
@click.option("--device", metavar="PATH", help="A disk or partition that nothing uses, such as /dev/sdb.")
@click.option(
    "--size", "size_mib", type=SizeType(), help="Make a disk of a file of this size instead, such as 1G."
)
@click.option("--file", metavar="PATH", help="That file.  [default: /var/lib/groundfault/NAME.img]")
@click.option("--name", default="data", show_default=True, help="Its device-mapper name, for --disk of faults.")
@click.option("--mount", metavar="PATH", help="Mount it there, now and at each boot.  [for a file: /srv/NAME]")
@click.option("--format", type=click.Choice(["ext4", "xfs"]), help="Make a file system on it.  [for a file: ext4]")
@click.option("--yes-erase", "erase", is_flag=True, help="Format it also where there is something on it.")
@click.option("--undo", is_flag=True, help="Take the table away again; a disk keeps its bytes, a file is deleted.")
@pass_session
def prepare_disk(session: Session, /, node: str, **given: Any) -> int:
    """Put a disk under device mapper, for disk faults; or show them.

    No data is copied or moved: /dev/mapper/NAME shows the same bytes. Nobody may have the disk in use; disks that
    are mounted, of the root file system, swap, LVM or RAID are refused. It stays so over reboots, until --undo.
    """  # fmt: skip
    request = Request(**{key: value for key, value in given.items() if value is not None})
    if request.only_looks and (request.file or request.mount or request.format or request.erase):
        raise UsageError("which disk?", "--device PATH or --size SIZE")
    checked = request.only_looks or given["undo"]
    found = session.node(node)
    title = f"asking {node}" if checked else f"preparing {request.name} on {node}"
    with session.patience(title):
        result = session.agent(found).prepare_disk(request)
    data = {"node": node, **result.model_dump(mode="json")}
    session.answer(data, _table(node, result) if request.only_looks else _text(session, node, request, result))
    return ExitCode.NODE_DIRTY if any(disk.problem for disk in result.disks) else ExitCode.PASS


def _table(node: str, result: PrepareResult) -> PlainTable | str:
    if not result.disks:
        return f"{node} has no prepared disk"
    rows = [
        (d.name, d.source, d.device or "absent", _size(d), d.filesystem, d.mount, d.problem) for d in result.disks
    ]
    return PlainTable(("NAME", "DISK", "NOW", "SIZE", "HOLDS", "MOUNT", "PROBLEM"), rows)


def _text(session: Session, node: str, request: Request, result: PrepareResult) -> str:
    if request.undo:
        return (
            f"{node}: {request.name} is taken away"
            if result.changed
            else f"{node}: {request.name} is not prepared"
        )
    (disk,) = result.disks
    if disk.problem:
        return f"{node}: {disk.name}: {disk.problem}"
    where = f", mounted at {disk.mount}" if disk.mount else ""
    text = f"{node}: {disk.name} is {disk.source} ({_size(disk)}{where})"
    if not result.changed:
        return f"{text}; it was already"
    return f"{text}; next: {session.command(f'inject latent_sector_error --node {node} --disk {disk.name}')}"


def _size(disk: DiskView) -> str:
    mib = disk.sectors / 2048
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.4g} MiB"


COMMANDS = ()
