"""The lab's own kernel: its key, its wishes, and the cache; building it is for tests on real kernels."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from labctl import paths
from labctl.errors import LabError
from labctl.lab import apt_sources, image, kernel
from labctl.progress import SilentProgress

CONFIG = kernel._files()[0].read_text()


def test_each_kernel_has_an_image_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {image.image_key(agent, name) for agent in (True, False) for name in image.GUESTS}
    assert len(keys) == 6
    debian, own = image.image_key(True), image.image_key(True, "lab")
    monkeypatch.setattr(image, "kernel_key", lambda: "changed")
    assert (image.image_key(True), image.image_key(True, "lab") != own) == (debian, True)
    assert image.rootfs_key("bookworm") != image.rootfs_key("trixie")


def test_a_changed_configuration_is_another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel.kernel_key()
    changed = tmp_path / "lab.config"
    changed.write_text(CONFIG + "CONFIG_X=y\n")
    monkeypatch.setattr(kernel, "_files", lambda: (changed, Path(kernel.__file__)))
    assert kernel.kernel_key() != before


def test_every_line_of_the_configuration_is_a_wish_that_can_be_checked() -> None:
    wishes = [line for line in CONFIG.splitlines() if line and not re.match(r"# [^C]|# C[^O]", line)]
    strange = [w for w in wishes if not re.fullmatch(r"CONFIG_\w+=(y|m|\d+|\".*\")|# CONFIG_\w+ is not set", w)]
    assert strange == []
    names = [found[0] for w in wishes if (found := re.findall(r"CONFIG_\w+", w))]
    assert sorted(names) == sorted(set(names)), "asked for twice"
    for needed in ("FAILSLAB", "FAIL_FUNCTION", "BPF_KPROBE_OVERRIDE", "DEBUG_INFO_BTF", "DM_DUST"):
        assert f"CONFIG_{needed}=y" in wishes


def test_a_built_kernel_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = paths.cache_dir() / "kernels" / kernel.kernel_key()
    there.mkdir(parents=True)
    (there / "release").write_text("6.12.1-groundfault\n")
    monkeypatch.setattr(kernel, "run", lambda *_, **__: pytest.fail("built again"))
    assert kernel.ensure_kernel(SilentProgress()).release == "6.12.1-groundfault"


def test_missing_compilers_are_named_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("labctl.lab.tools.find", lambda program: None if program == "pahole" else "/usr/bin/x")
    monkeypatch.setattr(apt_sources, "download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(LabError, match="pahole") as caught:
        kernel.ensure_kernel(SilentProgress())
    assert "dwarves" in caught.value.hint and "scripts/setup kernel" in caught.value.hint


def test_a_machine_without_a_mirror_is_told_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt_sources, "mirror", lambda: apt_sources.Mirror("", tmp_path))
    with pytest.raises(LabError, match="no Debian mirror") as caught:
        apt_sources.download("linux-source-6.12", "trixie", tmp_path)
    assert apt_sources.MIRROR_VARIABLE in caught.value.hint


def test_options_that_the_kernel_did_not_take_end_the_build_by_name(tmp_path: Path) -> None:
    """The part of the script that compares, on a configuration that lacks two wishes."""
    script = kernel._files()[1].read_text()
    part = script[script.index("# An option whose") : script.index("make --silent -j")]
    (tmp_path / ".config").write_text("CONFIG_A=y\nCONFIG_B=m\nCONFIG_D=y\n")
    wanted = tmp_path / "wanted"
    wanted.write_text('CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n# CONFIG_D is not set\nCONFIG_E="x y"\n')
    done = subprocess.run(
        ["sh", "-e", "-c", f"wanted={wanted}\n{part}"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        "CONFIG_B: wanted y, is m",
        "CONFIG_D: wanted not set, is y",
        'CONFIG_E: wanted "x y", is not set',
    ]
