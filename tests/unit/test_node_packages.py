"""The lock of the agent's packages: all that it needs, each by hash."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labctl import paths
from labctl.lab import bundle, code
from labctl.lab.install import ARCHITECTURES, PYTHON_VERSIONS
from labctl.progress import SilentProgress

PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)


def pins() -> dict[str, tuple[str, int]]:
    """Name to version and count of hashes."""
    found = PIN.findall(bundle.LOCK.read_text())
    return {name: (version, hashes.count("--hash")) for name, version, hashes in found}


def test_the_lock_is_nothing_but_pins_with_hashes() -> None:
    left = PIN.sub("", bundle.LOCK.read_text())
    assert [line for line in left.splitlines() if line and not line.startswith("#")] == []


def test_the_lock_has_what_the_project_asks_for() -> None:
    for line in code.node_requirements():
        wanted = Requirement(line)
        version, hashes = pins()[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), f"{line}: run scripts/lock-node-packages"
        assert hashes >= 1


def test_the_lock_has_what_those_need() -> None:
    """By what the packages that are installed here say of themselves."""
    for name in pins():
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            for python in PYTHON_VERSIONS:
                where = {"python_version": python, "python_full_version": f"{python}.0", "extra": "",
                         "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}  # fmt: skip
                if needed.marker is None or needed.marker.evaluate(where):
                    assert canonicalize_name(needed.name) in pins(), f"{name} needs {line}"


def test_each_kind_of_node_has_a_wheel_of_what_is_compiled() -> None:
    kinds = len(PYTHON_VERSIONS) * len(ARCHITECTURES)
    for name in ("grpcio", "pydantic-core"):
        assert pins()[name][1] == kinds
    for name in ("protobuf", "psutil"):  # by the stable ABI: one for each architecture
        assert pins()[name][1] == len(ARCHITECTURES)


@pytest.mark.parametrize("python", PYTHON_VERSIONS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_pip_is_asked_for_the_node_s_kind_and_by_hash(
    python: str, arch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def run(argv: tuple[str, ...], what: str, timeout: float) -> None:
        asked.append(argv)
        (Path(next(word for word in argv if word.startswith("--target=")).partition("=")[2])).mkdir()

    monkeypatch.setattr(bundle, "run", run)
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path)
    bundle._packages(python, arch, SilentProgress())
    (argv,) = asked
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:", f"--python-version={python}"} <= set(argv)
    platforms = [word for word in argv if word.startswith("--platform=")]
    assert platforms and all(word.endswith(arch) for word in platforms)


def test_another_lock_is_another_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = bundle.packages_key("3.13", "x86_64")
    other = tmp_path / "lock"
    other.write_text(bundle.LOCK.read_text() + "\n")
    monkeypatch.setattr(bundle, "LOCK", other)
    assert bundle.packages_key("3.13", "x86_64") != before
