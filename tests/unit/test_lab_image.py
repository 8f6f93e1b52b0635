"""Keys of images and bundles, and what is allowed into them."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from labctl import paths
from labctl.errors import LabError
from labctl.lab import bundle, code, image, tools


def test_keys_are_stable_and_differ_with_and_without_the_agent() -> None:
    assert image.image_key(agent=True) == image.image_key(agent=True)
    assert image.image_key(agent=True) != image.image_key(agent=False)


def test_a_changed_agent_changes_the_bundle_and_the_image_and_not_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    before = (bundle.packages_key("3.13", "x86_64"), bundle.bundle_key(), image.image_key(agent=True))
    debian, bare = image.rootfs_key(), image.image_key(agent=False)
    monkeypatch.setattr(code, "code_key", lambda: "changed")
    assert bundle.packages_key("3.13", "x86_64") == before[0]
    assert bundle.bundle_key() != before[1]
    assert image.image_key(agent=True) != before[2]
    assert (image.rootfs_key(), image.image_key(agent=False)) == (debian, bare)


def test_another_python_has_other_packages() -> None:
    assert bundle.packages_key("3.11", "x86_64") != bundle.packages_key("3.13", "x86_64")


def test_a_changed_package_list_changes_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.rootfs_key()
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "hello"))
    assert image.rootfs_key() != before


def test_more_packages_are_another_image_in_whatever_order() -> None:
    more = image.image_key(True, packages=("strace", "hello", "zstd"))
    assert more == image.image_key(True, packages=("zstd", "hello", "hello")) != image.image_key(True)
    assert image.image_key(True, packages=("strace",)) == image.image_key(True), "every node has that one"


def test_nothing_on_a_node_comes_from_problems_or_the_control_side() -> None:
    assert {name.split("/")[0] for name in code.node_files()} <= {"node_agent", "disk_faults", "ebpf"}
    assert any(line.startswith("grpcio") for line in code.node_requirements())


def test_bundle_archive_is_the_same_each_time(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / "node_agent").mkdir(parents=True)
    (lib / "node_agent" / "main.py").write_text("def main(): ...\n")
    bundle._pack(lib, "abc", tmp_path / "one.tar.gz")
    bundle._pack(lib, "abc", tmp_path / "two.tar.gz")
    assert gzip.decompress((tmp_path / "one.tar.gz").read_bytes()) == gzip.decompress(
        (tmp_path / "two.tar.gz").read_bytes()
    )
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        modes = {entry.name: entry.mode for entry in tar}
    plain, program = 0o644, 0o755
    assert modes == {"opt/groundfault/lib/node_agent/main.py": plain, "opt/groundfault/bin/node-agent": program,
                     "opt/groundfault/key": plain}  # fmt: skip
    assert list(modes)[-1] == "opt/groundfault/key", "where it is, all is"


def test_a_built_bundle_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = paths.cache_dir() / "bundles" / f"{bundle.bundle_key()}.tar.gz"
    there.parent.mkdir(parents=True)
    there.touch()
    monkeypatch.setattr(bundle, "run", lambda *_, **__: pytest.fail("built again"))
    assert bundle.build_bundle() == there


def test_code_that_changes_while_it_is_packed_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bundle, "_packages", lambda *_: tmp_path / "packages")
    (tmp_path / "packages").mkdir()
    monkeypatch.setattr(code, "place", lambda lib, work: monkeypatch.setattr(code, "code_key", lambda: "newer"))
    with pytest.raises(LabError, match="changed while it was packed"):
        bundle.build_bundle()
    assert list((paths.cache_dir() / "bundles").glob("*.tar.gz")) == []


def test_overlay_files_are_in_the_distribution() -> None:
    names = set(image._overlay_files())
    assert "usr/lib/groundfault/data-disk" in names
    assert "etc/systemd/system/groundfault-data.service" in names


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find", lambda program: None if program == "vde_switch" else "/usr/bin/x")
    with pytest.raises(LabError, match="vde_switch") as caught:
        tools.need("qemu-img", "vde_switch")
    assert caught.value.hint == "apt-get install vde2"


def test_a_program_that_fails_or_hangs_is_a_lab_error() -> None:
    with pytest.raises(LabError, match="trying: sh ended with 3") as caught:
        tools.run(("sh", "-c", "echo why >&2; exit 3"), "trying", timeout=10)
    assert caught.value.hint == "why"
    with pytest.raises(LabError, match="not done after"):
        tools.run(("tail", "-f", "/dev/null"), "trying", timeout=0.2)


def test_of_a_long_complaint_both_ends_are_shown() -> None:
    """Ruby says first what is wrong and then where; Python the reverse."""
    with pytest.raises(LabError) as caught:
        tools.run(("sh", "-c", "seq 100 >&2; exit 1"), "trying", timeout=10)
    shown = caught.value.hint.splitlines()
    assert (shown[0], shown[-1], len(shown)) == ("1", "100", 17)
