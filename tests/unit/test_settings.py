"""Keys in files, changed and changed back; files and sysctls that a fault may change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.edits import EditError, apply_edits, digest, set_key, standing, take_back
from node_agent.errors import ApplyError, ConflictError, Refusal
from node_agent.facts import gather_facts
from node_agent.fault import build_fault
from node_agent.faults.machine.setting_changed import SettingChanged
from node_agent.host.settings import ConfigFile, ConfigFiles, beside
from node_agent.probe import run_probes
from node_agent.steps.sysctl_value import SysctlValue
from node_agent.steps.unit_takes import UnitTakes
from tests.contract.simulated import SimulatedHost, fresh_kernel
from tests.contract.simulated_settings import APP, APP_TEXT, SWAPPINESS


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


@pytest.mark.parametrize(
    ("before", "key", "section", "after"),
    [
        ("a = 1\nb = 2\n", "b", "", "a = 1\nb = X\n"),
        ("  a: 1  # why\r\n", "a", "", "  a: X  # why\r\n"),
        ("#a = 1\n;a = 1\na = 2\na = 3", "a", "", "#a = 1\n;a = 1\na = X\na = X"),
        ("worker_connections  768;\n", "worker_connections", "", "worker_connections  X;\n"),
        ("listen_addresses = 'localhost'\t# what\n", "listen_addresses", "", "listen_addresses = 'X'\t# what\n"),
        ('{\n  "port": 80,\n  "host": "h",\n}\n', "host", "", '{\n  "port": 80,\n  "host": "X",\n}\n'),
        ("export PORT=80\n", "PORT", "", "export PORT=X\n"),
        ("[a]\nk = 1\n[b]\nk = 2\n", "k", "b", "[a]\nk = 1\n[b]\nk = X\n"),
        ("[a]\nk = 1\n\n[b]\n", "new", "a", "[a]\nk = 1\nnew = X\n\n[b]\n"),
        ("maxmemory 10mb\nsave 900 1\n", "timeout", "", "maxmemory 10mb\nsave 900 1\ntimeout X\n"),
        ("a=1", "b", "", "a=1\nb=X\n"),
        ("", "b", "", "b = X\n"),
        ("portable = 1\nport = 2\n", "port", "", "portable = 1\nport = X\n"),
    ],
)  # fmt: skip
def test_a_key_gets_another_value_and_the_old_one_back(before: str, key: str, section: str, after: str) -> None:
    data = before.encode()
    edits = set_key(data, key, "X", section)
    assert apply_edits(data, edits) == after.encode()
    assert take_back(after.encode(), edits) == data


@pytest.mark.parametrize(
    ("text", "key", "section", "why"),
    [
        ("[a]\nk=1\n", "k", "b", "no section"),
        ("[a]\nk=1\n", "new", "", "sections"),
        ("{}\n", "k", "", "of its own"),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_set(text: str, key: str, section: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        set_key(text.encode(), key, "X", section)


@given(
    st.lists(st.sampled_from(["k = 1", "k = 2 # c", "# k = 3", "other = k", "", "k=\xe4"]), max_size=12),
    st.booleans(),
)
def test_any_file_comes_back(lines: list[str], ended: bool) -> None:
    data = ("\n".join(lines) + "\n" * ended).encode("latin-1")
    edits = set_key(data, "k", "9")
    after = apply_edits(data, edits)
    assert take_back(after, edits) == data
    more = after + b"z = 1\n" if after.endswith(b"\n") else after
    assert take_back(more, edits) == more.replace(after, data), "what others add stays"
    assert take_back(data, edits) == data or standing(data, edits)


def test_what_somebody_has_changed_stays() -> None:
    edits = set_key(b"a = 1\nb = 2\n", "b", "9")
    assert take_back(b"a = 5\nc = 3\nb = 9\n", edits) == b"a = 5\nc = 3\nb = 2\n"
    assert take_back(b"a = 1\nb = 7\n", edits) == b"a = 1\nb = 7\n"


def test_a_file_is_replaced_with_all_that_it_had(tmp_path: Path) -> None:
    path, files = tmp_path / "app.conf", ConfigFiles()
    path.write_bytes(b"old\r\n")
    path.chmod(0o640)
    os.utime(path, ns=(5, 1_000_000_007))
    try:
        os.setxattr(path, "user.note", b"kept")
        noted = True
    except OSError:
        noted = False
    before = files.file(str(path))
    assert before is not None and (before.data, before.mode, before.mtime_ns) == (b"old\r\n", 0o640, 1_000_000_007)
    Path(beside(str(path), "groundfault-x")).write_text("of an agent that was killed")
    files.replace(str(path), b"new", "groundfault-x")
    now = files.file(str(path))
    assert now is not None and (now.data, now.mode) == (b"new", 0o640) and now.mtime_ns != before.mtime_ns
    files.replace(str(path), before.data, "groundfault-x", before.mtime_ns)
    assert files.file(str(path)) == before and [p.name for p in tmp_path.iterdir()] == ["app.conf"]
    assert not noted or os.getxattr(path, "user.note") == b"kept"
    made = tmp_path / "unit.d" / "zz-groundfault-x.conf"
    files.replace(str(made), b"[Service]\n", "groundfault-x")
    assert made.stat().st_mode & 0o777 == 0o644
    files.remove(str(made), "groundfault-x")
    files.remove(str(made), "groundfault-x")
    assert [p.name for p in tmp_path.iterdir()] == ["app.conf"]


def planned(host: SimulatedHost, **parameters: Any) -> Any:
    fault = build_fault(SettingChanged, {"value": "1", **parameters})
    facts = gather_facts(host, "w1", run_probes(SimulatedHost(fresh_kernel())))
    return fault, fault.steps(facts, fault.locate(host, facts), "groundfault-x")


def test_a_file_that_was_changed_meanwhile(host: SimulatedHost) -> None:
    fault, (_, step) = planned(host, file=APP, key="workers")
    undo = step.capture(host)
    step.apply(host)
    now = host.kernel.config[APP]
    host.kernel.config[APP] = ConfigFile(now.data.replace(b"100", b"101"), now.mode, 7, 1)
    assert step.leftovers(host, undo) == (f"{APP} still says 'workers=1'",)
    for _ in range(2):
        step.revert(host, undo)
        assert (
            host.kernel.config[APP].data == APP_TEXT.replace(b"100", b"101") and step.leftovers(host, undo) == ()
        )
    del host.kernel.config[APP]
    step.revert(host, undo)
    assert step.leftovers(host, undo) == (), "who has removed the file has removed our line"
    with pytest.raises(ConflictError, match="somebody is changing"):
        step.capture(host)
    assert fault.value == "1" and digest(b"") != step.before


def test_a_sysctl_that_was_changed_meanwhile(host: SimulatedHost) -> None:
    step = SysctlValue(name="vm/swappiness", value="1", was="60")
    step.apply(host)
    host.kernel.texts[SWAPPINESS] = "33"
    step.revert(host, {})
    assert host.kernel.texts[SWAPPINESS] == "33" and step.leftovers(host, {}) == ()


def test_a_value_that_comes_back_only_with_another(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    by_bytes, by_ratio = "/proc/sys/vm/dirty_bytes", "/proc/sys/vm/dirty_ratio"
    host.kernel.texts |= {by_bytes: "0", by_ratio: "20"}

    def write(path: str, text: str) -> None:
        if (path, text.strip()) == (by_bytes, "0"):
            raise OSError(22, "Invalid argument")
        host.kernel.texts |= {by_bytes: "0", by_ratio: "0"} | {path: text.strip()}

    monkeypatch.setattr(host, "write_text", write)
    _, (_, step) = planned(host, sysctl="vm.dirty_bytes", value="8388608")
    step.apply(host)
    assert (host.kernel.texts[by_bytes], host.kernel.texts[by_ratio]) == ("8388608", "0")
    for _ in range(2):
        step.revert(host, {})
        assert (host.kernel.texts[by_bytes], host.kernel.texts[by_ratio]) == ("0", "20")
        assert step.leftovers(host, {}) == ()


def test_a_value_that_the_kernel_rounds_is_not_kept(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    monkeypatch.setattr(host, "write_text", lambda path, text: writes.append(text.strip()))
    with pytest.raises(ApplyError, match="makes '60' of '61'"):
        SysctlValue(name="vm/swappiness", value="61", was="60").apply(host)
    assert writes == ["61", "60"]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "sysctl"), ({"sysctl": "vm.swappiness", "file": APP}, "sysctl"),
        ({"sysctl": "vm.swappiness", "key": "k"}, "key"),
        ({"sysctl": "../etc/passwd"}, "sysctl"), ({"sysctl": "kernel.modules_disabled"}, "sysctl"),
        ({"sysctl": "kernel.core_pattern"}, "sysctl"), ({"sysctl": "net.ipv4.conf.mgmt.rp_filter"}, "sysctl"),
        ({"sysctl": "net.ipv6.conf.lan.disable_ipv6"}, "sysctl"), ({"sysctl": "vm.no_such"}, "sysctl"),
        ({"file": APP}, "key"), ({"file": "app.conf", "key": "k"}, "file"),
        ({"file": "/etc/none", "key": "k"}, "file"),
        ({"file": "/etc/ssh/sshd_config", "key": "Port"}, "file"),
        ({"file": "/boot/grub/grub.cfg", "key": "k"}, "file"),
        ({"file": "/root/.ssh/authorized_keys", "key": "k"}, "file"),
        ({"file": "/var/lib/groundfault/x", "key": "k"}, "file"),
        ({"limit": "LimitNOFILE", "unit": "ssh"}, "unit"), ({"limit": "LimitNOFILE", "unit": "nothing"}, "unit"),
        ({"limit": "ExecStart", "unit": "cron"}, "limit"), ({"sysctl": "vm.swappiness", "value": "1\n2"}, "value"),
    ],
)  # fmt: skip
def test_refusals(host: SimulatedHost, parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        planned(host, **parameters)
    assert refused.value.field == field and host.changes == 0


def test_a_limit_is_a_file_of_its_own_around_which_the_service_restarts(host: SimulatedHost) -> None:
    _, steps = planned(host, unit="cron", limit="LimitNOFILE", value="64")
    assert [step.kind for step in steps] == ["mark_file", "unit_takes", "file_edit", "unit_takes"]
    assert steps[2].path == "/run/systemd/system/cron.service.d/zz-groundfault-x.conf"
    before, after = steps[1], steps[3]
    assert isinstance(before, UnitTakes) and (before.when, after.when, before.manager) == ("revert", "apply", True)
    steps[2].apply(host)
    assert host.kernel.config[steps[2].path].data == b"[Service]\nLimitNOFILE=64\n"
    steps[2].revert(host, {})
    assert steps[2].path not in host.kernel.config
