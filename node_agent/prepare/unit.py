"""The unit of systemd that brings prepared disks up at boot, before the local file systems are called complete."""

from __future__ import annotations

from collections.abc import Sequence

from node_agent.host import Host
from node_agent.prepare.model import Prepared

UNIT = "groundfault-disks.service"
FILE = f"/etc/systemd/system/{UNIT}"
WANTED = f"/etc/systemd/system/local-fs.target.wants/{UNIT}"

_TEXT = """[Unit]
Description=Disks that labctl node prepare-disk put under device mapper
DefaultDependencies=no
RequiresMountsFor={needs}
After=systemd-remount-fs.service systemd-udevd.service systemd-udev-trigger.service
After=systemd-tmpfiles-setup-dev.service
Before=local-fs.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/opt/groundfault/bin/node-agent disks
TimeoutStartSec=180
"""


def text_for(records: Sequence[Prepared]) -> str:
    """The unit for these disks: what their files lie on, and what they are mounted into, comes first."""
    places = {"/opt/groundfault", "/var/lib/groundfault"}
    places |= {record.source for record in records if record.kind == "file"}
    places |= {record.mount.rpartition("/")[0] or "/" for record in records if record.mount}
    return _TEXT.format(needs=" ".join(sorted(places)))


def settle(host: Host, records: Sequence[Prepared]) -> None:
    """Make the unit fit the records; without any, it goes. Does nothing where it fits.

    systemd reads it at boot and need not know before: a reload takes ten seconds on a slow machine.
    """
    if not records:
        if host.exists(FILE) or host.file_info(WANTED) is not None:
            host.query(("systemctl", "stop", UNIT))  # after a boot it counts as active, and would be remembered
            host.remove_file(WANTED)
            host.remove_file(FILE)
        return
    text = text_for(records)
    if host.exists(FILE) and host.read_text(FILE) == text and host.file_info(WANTED) is not None:
        return
    host.write_text(FILE, text)
    host.run(("chmod", "644", FILE))
    host.run(("mkdir", "-p", WANTED.rpartition("/")[0]))
    host.run(("ln", "-sfn", f"../{UNIT}", WANTED))
    host.run(("sync", "-f", FILE))
