"""A machine without device mapper, and without the program that loads modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.host import dm, loop


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dm, "_CONTROL", str(tmp_path / "mapper" / "control"))
    monkeypatch.setattr(loop, "_CONTROL", str(tmp_path / "loop-control"))
    monkeypatch.setenv("PATH", str(tmp_path))


def test_it_has_no_devices_and_everything_else_of_them_is_an_os_error() -> None:
    """Looking at the state of such a node succeeds: faults that need none of it can be planted there."""
    devices = dm.DeviceMapper()
    assert devices.list() == ()
    for call in (lambda: devices.info("data"), lambda: devices.table("data")):
        with pytest.raises(FileNotFoundError, match="control"):
            call()


def test_no_loop_devices_can_be_made(tmp_path: Path) -> None:
    backing = tmp_path / "file"
    backing.write_bytes(bytes(4096))
    with pytest.raises(FileNotFoundError, match="loop-control"):
        loop.LoopDevices().attach(str(backing), direct_io=False)


def test_another_error_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mapper").mkdir()
    (tmp_path / "mapper" / "control").write_text("no device")
    with pytest.raises(OSError, match="ioctl"):
        dm.DeviceMapper().list()
