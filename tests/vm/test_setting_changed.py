"""setting_changed on a real kernel: sysctls, limits and files, by what ss, services and stat say of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from labctl.errors import LabctlError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.net_bench import NetBench

pytestmark = pytest.mark.vm

_NUMBERS = itertools.count(1)

CONF = "/etc/app/app.conf"
LISTEN = (
    "perl -MIO::Socket::INET -e '"
    "$s = IO::Socket::INET->new(LocalPort => shift, Listen => 999, ReuseAddr => 1) or die; sleep 1000000'"
)
"""Listens at a port, with a long queue."""
STAT = f"stat -c '%a %U:%G %s %Y %y' {CONF}; getfattr -d {CONF} 2>/dev/null; sha256sum {CONF}; ls -A /etc/app"
SETUP = f"""
mkdir -p /etc/app; printf '# an app\\r\\n[server]\\nport = 7201 # tcp\\n[pool]\\nsize: 4\\n' > {CONF}
chown nobody:daemon {CONF}; chmod 4640 {CONF}; touch -d 2001-02-03T04:05:06.789 {CONF}
cat > /run/app.sh <<'END'
port=$(sed -n 's/^port = \\([0-9]*\\).*/\\1/p' {CONF})
[ "$port" -gt 1024 ] || {{ echo "bad port: $port" >&2; exit 1; }}
exec {LISTEN} $port
END
for n in app neighbour; do
printf '[Service]\\nExecStart=/bin/sh /run/%s.sh\\n' $n > /run/systemd/system/$n.service
done
echo exec sleep 1000000 > /run/neighbour.sh
systemctl daemon-reload; systemctl start app neighbour
"""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[NetBench]:
    lab.reset()
    with ExitStack() as stack:
        sockets = stack.enter_context(TemporaryDirectory(prefix="set-"))
        agent = AgentClient(stack.enter_context(connect(lab.node("w3"), lab.authority)))
        one = NetBench(lab.node("w3"), lab.node("w1"), agent, sockets)
        one.sh(SETUP)
        until("the service listens", lambda: listens(one, 7201))
        yield one
    lab.reset()


@pytest.fixture(autouse=True)
def nothing_stays(bench: NetBench) -> Iterator[None]:
    """Around each test: the file and all sysctls as before, the neighbour was not restarted, no residue."""
    everything = f"{STAT}; sysctl -a 2>/dev/null | grep -E '^(net.ipv[46].conf|net.core.somaxconn|vm.dirty)'"
    before, neighbour = bench.sh(everything), bench.sh("systemctl show -p MainPID neighbour")
    bench.mine.clear()
    yield
    live = tuple(view.id for view in bench.agent.list().injections if view.id in bench.mine)
    if live:
        bench.agent.recover(live)
    assert bench.agent.residue() == ()
    assert bench.sh(everything) == before
    assert bench.sh("systemctl show -p MainPID neighbour; ls /run/systemd/system/neighbour* -d") == (
        f"{neighbour}\n/run/systemd/system/neighbour.service"
    )


def listens(bench: NetBench, port: int) -> bool:
    return f":{port} " in bench.sh("ss -Hltn")


def refused(bench: NetBench, **parameters: Any) -> str:
    """What is said when it is not planted."""
    with pytest.raises(LabctlError) as refusal:
        bench.agent.apply(f"refused-{next(_NUMBERS)}", "setting_changed", {"value": "1", **parameters}, 60)
    return str(refusal.value)


def backlog(bench: NetBench) -> str:
    """How long a queue a new listener gets, as ss tells it."""
    return bench.sh(
        f'{LISTEN} 7202 & until q=$(ss -Hltn sport = 7202) && [ -n "$q" ]; do sleep 0.2; done; '
        "kill $!; set -- $q; echo $3"
    )


def test_a_sysctl(bench: NetBench) -> None:
    before = backlog(bench)
    view = bench.inject("setting_changed", sysctl="net.core.somaxconn", value="7")
    assert backlog(bench) == "7" != before and bench.evidence(view).armed
    assert [(d.item, d.injection) for d in bench.agent.residue() if d.category == "sysctl"] == [
        ("net/core/somaxconn", view.id)
    ]
    assert view.id in refused(bench, sysctl="net/core/somaxconn", value="8")
    bench.recover(view)
    assert backlog(bench) == before
    was = bench.sh("sysctl -n net.core.somaxconn")
    view = bench.inject("setting_changed", sysctl="net.core.somaxconn", value="7")
    bench.sh("sysctl -q net.core.somaxconn=55")
    found = bench.evidence(view)
    assert not found.armed and "'55'" in found.notes[0]
    bench.recover(view)
    assert bench.sh(f"sysctl -n net.core.somaxconn; sysctl -q net.core.somaxconn={was}") == "55", "theirs stays"


def test_what_the_kernel_changes_along_comes_back(bench: NetBench) -> None:
    bench.sh("sysctl -q net.ipv4.conf.lan.accept_redirects=0")
    conf = "sysctl -a 2>/dev/null | grep -E '^(net.ipv4.(conf|ip_f)|vm.dirty)'"
    before = bench.sh(conf)
    views = [
        bench.inject("setting_changed", sysctl="net.ipv4.ip_forward", value="1"),
        bench.inject("setting_changed", sysctl="vm.dirty_bytes", value="8388608"),
    ]
    assert "lan.forwarding = 1" in bench.sh(conf) and "vm.dirty_ratio = 0" in bench.sh(conf)
    bench.recover(*views)
    assert bench.sh(conf) == before
    bench.sh("sysctl -q net.ipv4.conf.lan.accept_redirects=1")


def test_a_key_of_a_file_that_a_service_reads(bench: NetBench) -> None:
    view = bench.inject("setting_changed", file=CONF, key="port", section="server", value="80", reload_unit="app")
    assert "port = 80 # tcp" in bench.sh(f"cat {CONF}") and bench.sh(f"stat -c '%a %U:%G' {CONF}") == (
        "4640 nobody:daemon"
    )
    until("it does not start any more", lambda: "failed" in bench.sh("systemctl is-active app", check=False))
    assert "bad port: 80" in bench.sh("journalctl -u app -n 5 -o cat")
    assert "app.service is failed" in bench.evidence(view).notes
    bench.recover(view)
    until("it listens again", lambda: listens(bench, 7201))
    view = bench.inject("setting_changed", file=CONF, key="port", value="7299", reload_unit="app")
    until("it listens elsewhere", lambda: listens(bench, 7299))
    bench.recover(view)
    until("it listens again", lambda: listens(bench, 7201))


def test_what_somebody_else_changes_in_the_file_stays(bench: NetBench) -> None:
    old = bench.sh(f"cp -a {CONF} /run/kept; cat {CONF}")
    view = bench.inject("setting_changed", file=CONF, key="port", value="80")
    bench.sh(f"sed -i 's/size: 4/size: 40/' {CONF}")
    assert "somebody has changed the file" in bench.evidence(view).notes[0] and bench.evidence(view).armed
    bench.recover(view)
    assert bench.sh(f"cat {CONF}") == old.replace("size: 4", "size: 40")
    view = bench.inject("setting_changed", file=CONF, key="port", value="80")
    bench.sh(f"sed -i 's/^port.*/port = 7300/' {CONF}")
    assert not bench.evidence(view).armed
    bench.recover(view)
    assert "port = 7300" in bench.sh(f"cat {CONF}")
    view = bench.inject("setting_changed", file=CONF, key="new_key", section="pool", value="on")
    assert bench.sh(f"tail -n 1 {CONF}").startswith("new_key")
    bench.recover(view)
    assert "new_key" not in bench.sh(f"cat {CONF}; cp -a /run/kept {CONF}")


def test_a_limit_of_a_service(bench: NetBench) -> None:
    limits = "sed -n 's/Max open files *//p' /proc/$(systemctl show -P MainPID app)/limits"
    before, folder = bench.sh(limits), "/run/systemd/system/app.service.d"
    view = bench.inject("setting_changed", unit="app", limit="LimitNOFILE", value="64")
    assert bench.sh(limits).split()[:2] == ["64", "64"]
    assert view.id in bench.sh(f"ls {folder}")
    bench.recover(view)
    assert bench.sh(limits) == before and bench.sh(f"ls -d {folder}", check=False) == ""


def test_refusals(bench: NetBench) -> None:
    assert "never a target" in refused(bench, file="/etc/ssh/sshd_config", key="Port")
    assert "never a target" in refused(bench, file="/etc/shadow", key="root")
    bench.sh(f"ln -s /etc/passwd /etc/app/link; ln {CONF} /etc/second")
    assert "never a target" in refused(bench, file="/etc/app/link", key="root")
    assert "hard links" in refused(bench, file=CONF, key="port")
    bench.sh("rm /etc/app/link /etc/second")
    assert "does not exist" in refused(bench, file="/etc/app/none", key="x")
    assert "no section [srv]" in refused(bench, file=CONF, key="port", section="srv")
    assert "has sections" in refused(bench, file=CONF, key="prot")
    assert "cannot be set back" in refused(bench, sysctl="kernel.modules_disabled")
    assert "control needs" in refused(bench, sysctl="net.ipv4.conf.mgmt.rp_filter")
    assert "control traffic" in refused(bench, sysctl="net.ipv4.conf.all.rp_filter")
    assert "cannot be read" in refused(bench, sysctl="net.ipv4.tcp_nothing")
    assert "Invalid argument" in refused(bench, sysctl="net.ipv4.tcp_syncookies", value="nonsense")
    assert "undone" in refused(bench, sysctl="net.ipv4.tcp_retries2", value="70000")
    assert "never a target" in refused(bench, unit="ssh", limit="LimitNOFILE")
    assert "name one setting" in refused(bench, sysctl="vm.swappiness", file=CONF)
    assert "goes with file" in refused(bench, sysctl="vm.swappiness", key="x")
