"""The node image: build it, or make a disk or a Vagrant box of it for machines that others run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from labctl.cli.base import LabGroup, pass_session
from labctl.cli.session import Session
from labctl.lab.model import ExportFormat, KernelName


@click.group("image", cls=LabGroup, invoke_without_command=True)
@click.option(
    "--kernel", type=click.Choice(get_args(KernelName)), default="debian13", show_default=True, help="Its kernel."
)
@click.pass_context
@pass_session
def image_group(session: Session, ctx: click.Context, /, kernel: KernelName) -> None:
    """Build the node image, without booting it."""
    if ctx.invoked_subcommand:
        return
    from labctl.lab.image import ensure_image  # the builder is of no use to other commands

    built = ensure_image(True, session.progress, kernel)
    session.answer({"key": built.key, "disk": str(built.disk)}, str(built.disk))


@image_group.command("export")
@click.option(
    "--format", "wanted", type=click.Choice(get_args(ExportFormat)), required=True, help="What it is to be."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where it goes.  [default: groundfault-KERNEL.box, .qcow2 or .raw here]",
)
@click.option(
    "--authorized-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Public SSH key that may log in as root.  [default, of a box: the one Vagrant replaces]",
)
@click.option("--kernel", type=click.Choice(get_args(KernelName)), help="Its kernel.  [default: debian13]")
@click.pass_context
@pass_session
def export_command(
    session: Session,
    ctx: click.Context,
    /,
    *,
    wanted: ExportFormat,
    out: Path | None,
    authorized_key: Path | None,
    kernel: KernelName | None,
) -> None:
    """Make a disk, or a Vagrant box, of the node image.

    It has no agent: `labctl up --provider vagrant` or `labctl node install` puts it there. It boots by BIOS from a
    virtio or SCSI disk, gets its address by DHCP, and makes its own SSH host key. No root is needed.
    """  # fmt: skip
    from labctl.lab.export import SUFFIX, check_target, export_image, first_key
    from labctl.lab.image import ensure_image

    assert ctx.parent
    kernel = kernel or ctx.parent.params["kernel"]  # --kernel before the word export counts, too
    key = first_key(authorized_key, wanted)
    target = check_target(out or Path(f"groundfault-{kernel}.{SUFFIX[wanted]}"))
    export_image(ensure_image(False, session.progress, kernel), wanted, key, target, session.progress)
    size = target.stat().st_size
    session.answer({"file": str(target), "format": wanted, "bytes": size}, f"{target} has {size / 2**20:.0f} MiB")


COMMANDS = (image_group,)
