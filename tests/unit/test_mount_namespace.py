"""In whose mount namespace the agent works, on real namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from labctl.run.telling import names_in
from node_agent.host.mount_namespace import join_mounts_of
from node_agent.steps.stop_filesystem import LOGGED

ROOT = Path(__file__).parents[2]

INSIDE = """
import os, sys
from pathlib import Path
from node_agent.host.mount_namespace import join_mounts_of
from node_agent.host import units
there, place = Path("/proc", sys.argv[1]), sys.argv[2]
device = "0:%d" % os.minor(os.stat(place).st_dev)
os.system("umount " + place)
print("seen there:", *(one.rpartition(" at ")[2] for one in units.mounted_for(device)))
os.chdir(os.path.dirname(place))
print(os.path.ismount(place), join_mounts_of(there), os.path.ismount(place), join_mounts_of(there))
print(os.getcwd() == os.path.dirname(place))
os.system("umount " + place)
"""


def test_what_is_unmounted_after_it_came_is_unmounted_for_all(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    outside = f"""mount -t tmpfs none {place} && mount --make-rshared /
unshare --mount --propagation slave {sys.executable} -c "$INSIDE" $$ {place}
mountpoint -q {place} && echo mounted || echo gone"""
    done = subprocess.run(
        ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", outside), capture_output=True, text=True,
        env={**os.environ, "INSIDE": INSIDE, "PYTHONPATH": str(ROOT)}, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout.split("\n"), done.stderr) == (
        [f"seen there: {place}", "False True True False", "True", "gone", ""],
        "",
    )


def test_who_is_there_already_stays(tmp_path: Path) -> None:
    assert not join_mounts_of(Path("/proc/self"))


def test_who_has_another_root_is_left_alone(tmp_path: Path) -> None:
    """`ns/mnt` of another namespace, but not our files: as of a container."""
    other = tmp_path / "1"
    (other / "ns").mkdir(parents=True)
    (other / "root").mkdir()
    (other / "ns/mnt").symlink_to("mnt:[1]")
    assert not join_mounts_of(other)


def test_what_the_kernel_is_given_to_log_names_nobody() -> None:
    line = f"EXT4-fs error (device dm-0): trigger_test_error:129: comm node-agent: {LOGGED}"
    assert names_in(line) == ()
