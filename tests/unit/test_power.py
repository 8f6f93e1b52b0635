"""`labctl power`: by Redfish against a real emulator, against controllers that misbehave, and in the QEMU lab."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import ExitCode, LabctlError, LabError, UnsupportedError, UsageError
from labctl.lab.inventory import parse_inventory
from labctl.power.model import Bmc
from labctl.power.qemu import QemuPower
from labctl.power.redfish import FORCED_S, RedfishPower
from labctl.progress import Progress
from tests.unit.cli_world import Done, World
from tests.unit.redfish_bmc import PASSWORD, OddBmc, Reply, certificate, emulator, served

TWO = ("first", "second")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An emulator with two systems."""
    with emulator(tmp_path_factory.mktemp("bmc"), TWO) as url:
        yield url


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMC_PASSWORD", PASSWORD)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Said:
    """A task that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, message: str, fraction: float | None = None) -> None:
        self.lines.append(message)


class Time:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def bmc_of(url: str, **more: Any) -> Bmc:
    given = {"url": url, "user": "lab", "password_env": "BMC_PASSWORD", "verify": False, **more}
    return Bmc.model_validate(given)


def switch(url: str, **more: Any) -> RedfishPower:
    time = Time()
    return RedfishPower("db1", bmc_of(url, **more), clock=time.clock, sleep=time.sleep)


@contextmanager
def rack(world: World, directory: Path, bmc: str) -> Iterator[None]:
    """A lab `rack` with the host db1, whose SSH port answers."""
    with socket.create_server(("127.0.0.1", 0)) as ssh:
        port = ssh.getsockname()[1]
        file = directory / "hosts.toml"
        file.write_text(f'[nodes.db1]\naddress = "127.0.0.1"\nport = {port}\nknown_hosts = "none"\nbmc = {bmc}\n')
        world.create_lab("rack", "ssh").set_hosts(parse_inventory(file.read_text(), file))  # type: ignore[attr-defined]
        yield


def power(world: World, *words: str) -> Done:
    done = world.run("--lab", "rack", "power", "db1", *words)
    assert PASSWORD not in done.out + done.err
    return done


def test_a_real_host_is_switched(world: World, tmp_path: Path, plain: str) -> None:
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    (tmp_path / "secret").chmod(0o600)
    bmc = f'{{ url = "{plain}", system = "first", user = "lab", password_file = "secret", verify = false }}'
    with rack(world, tmp_path, bmc):
        assert power(world, "status").out == "db1 is off\n"
        assert power(world, "on").out == "db1 is on\n"
        assert power(world, "on").out == "db1 was on\n"
        refused = power(world, "off")
        assert (refused.code, refused.out) == (64, "")
        assert "pull the plug of db1 (system first of http://127.0.0.1:" in refused.err
        assert "add --yes" in refused.err
        assert power(world, "status", "--json").data == {"node": "db1", "power": "on", "changed": False}
        assert power(world, "cycle", "--yes").out == "db1 is on\n"
        assert power(world, "off", "--graceful", "--yes").out == "db1 is off\n"
        assert power(world, "off", "--yes", "--json").data == {"node": "db1", "power": "off", "changed": False}
    assert switch(plain, system="second").state() == "off", "the other one was not touched"


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_is_asked(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bmc = OddBmc(on_reset=done_at_once)
    with served(bmc) as url:
        text = f'{{ url = "{url}", user = "lab", password_env = "BMC_PASSWORD", verify = false }}'
        with rack(world, tmp_path, text):
            monkeypatch.setattr("sys.stdin", Terminal("n\n"))
            refused = power(world, "off")
            assert (refused.code, bmc.posts) == (130, [])
            assert f"off: pull the plug of db1 (by {url})? [y/N]" in refused.err
            monkeypatch.setattr("sys.stdin", Terminal("y\n"))
            assert power(world, "off").out.endswith("db1 is off\n")
            assert power(world, "on").out == "db1 is on\n", "on is not asked about"
    assert bmc.posts == ["ForceOff", "On"]


def test_a_host_without_a_controller_says_what_to_add(world: World, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[nodes.db1]\naddress = "h"\n')
    world.create_lab("rack", "ssh").set_hosts(parse_inventory(file.read_text(), file))  # type: ignore[attr-defined]
    done = power(world, "status")
    assert done.code == ExitCode.UNSUPPORTED
    assert "hint: add bmc = { url, user, password_file } to nodes.db1" in done.err


@pytest.mark.parametrize("words", [("status", "--graceful"), ("on", "--graceful"), ("reset",)])
def test_impossible_words(world: World, words: tuple[str, ...]) -> None:
    assert world.run("power", "w1", *words).code == 64


def test_the_labs_own_machines_need_no_yes(world: World) -> None:
    assert world.run("power", "w1", "status").out == "w1 is on\n"
    assert world.run("power", "w1", "off").out == "w1 is off\n"
    assert world.run("power", "w1", "off", "--json").data == {"node": "w1", "power": "off", "changed": False}
    assert world.run("power", "w1", "cycle", "--graceful").out == "w1 is on\n"
    assert world.lab.calls == ["off w1", "off w1", "shutdown w1", "on w1"]


def failed(url: str, **more: Any) -> LabctlError:
    with pytest.raises(LabctlError) as caught:
        switch(url, **more).state()
    assert PASSWORD not in str(caught.value) + caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


def test_the_system_has_to_be_named(plain: str) -> None:
    several = failed(plain)
    assert several.exit_code == ExitCode.USAGE
    assert "2 systems, and bmc.system does not say which is db1" in several.message
    assert "first" in several.hint
    unknown = failed(plain, system="third")
    assert unknown.exit_code == ExitCode.USAGE
    assert "no system 'third'" in unknown.message
    assert "00000000-0000-0000-0000-000000000002 (second)" in unknown.hint
    for name in ("second", "00000000-0000-0000-0000-000000000002"):
        assert switch(plain, system=name).state() == "off"


def test_a_wrong_password(plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMC_PASSWORD", "wr0ng-one")
    error = failed(plain, system="first")
    assert error.exit_code == ExitCode.LAB_BROKE
    assert "refuses user lab with this password" in error.message
    assert "bmc.password_env (BMC_PASSWORD)" in error.hint
    assert "wr0ng-one" not in error.message + error.hint


def test_a_controller_out_of_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    error = failed(url)
    assert (error.exit_code, error.message) == (ExitCode.LAB_BROKE, f"{url}: Connection refused")
    assert "management network" in error.hint


def test_a_controller_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.power.client.ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no answer within 0.3 s" in failed(f"http://127.0.0.1:{silent.getsockname()[1]}").message


def test_certificates_are_verified(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with emulator(tmp_path, ("only",), tls) as url:
        error = failed(url, verify=True)
        assert error.message == f"{url}: the BMC's certificate is not trusted: self-signed certificate"
        assert "verify = false" in error.hint
        assert switch(url, verify=tls[0]).state() == "off"
        assert switch(url, verify=False).state() == "off"
        assert failed(url, verify=tmp_path / "absent").exit_code == ExitCode.USAGE
        plain = failed(url.replace("https", "http"))
        assert plain.exit_code == ExitCode.LAB_BROKE


def test_where_the_password_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text(PASSWORD)
    file.chmod(0o644)
    by_file = {"password_env": None, "password_file": file}
    assert failed("http://h", **by_file).hint == f"chmod 600 {file}"
    file.chmod(0o600)
    assert bmc_of("http://h", **by_file).password() == PASSWORD
    file.write_text("\n")
    assert "is empty" in failed("http://h", **by_file).message
    file.unlink()
    assert "cannot be read" in failed("http://h", **by_file).message
    monkeypatch.delenv("BMC_PASSWORD")
    assert "BMC_PASSWORD is not set" in failed("http://h").message


@pytest.mark.parametrize(
    ("bmc", "message"),
    [
        ('url = "https://h"', "user: field required"),
        ('url = "https://h", user = "u", password = "Tr0ub4dor&3"', "does not belong in the inventory"),
        ('url = "https://h", user = "u"', "either password_file or password_env"),
        ('url = "https://h", user = "u", password_env = "A", password_file = "b"', "either"),
        ('url = "https://u:Tr0ub4dor&3@h", user = "u", password_env = "A"', "no user and no password in it"),
        ('url = "http://h", user = "u", password_env = "A"', "verify = false accepts that"),
        ('url = "ftp://h", user = "u", password_env = "A"', "should be https://HOST"),
        ('url = "https://h:x", user = "u", password_env = "A"', "not a URL"),
        ('url = "https://h/redfish/v1", user = "u", password_env = "A"', "nothing after the host"),
        ('url = "https://h", user = "u", password_env = "A", port = 1', "bmc.port: there is no such key"),
        ('url = "https://h", user = "u", password_env = "A-B"', "bmc.password_env: string should match"),
    ],
)
def test_a_wrong_bmc_names_the_field_and_no_secret(bmc: str, message: str) -> None:
    if "user: field required" in message:
        bmc += ', password_env = "A"'
    with pytest.raises(UsageError) as caught:
        parse_inventory(f'[nodes.a]\naddress = "h"\nbmc = {{ {bmc} }}', Path("/inv/hosts.toml"))
    assert "nodes.a.bmc" in caught.value.message
    assert message in caught.value.message
    assert PASSWORD not in caught.value.message


def test_paths_of_a_bmc_are_beside_the_inventory() -> None:
    bmc = '{ url = "https://h", user = "u", password_file = "bmc.pw", verify = "ca.pem" }'
    (node,) = parse_inventory(f'[nodes.a]\naddress = "h"\nbmc = {bmc}', Path("/inv/hosts.toml"))
    assert node.bmc
    assert (node.bmc.password_file, node.bmc.verify) == (Path("/inv/bmc.pw"), Path("/inv/ca.pem"))
    word = bmc.replace('"ca.pem"', '"false"')
    (node,) = parse_inventory(f'[nodes.a]\naddress = "h"\nbmc = {word}', Path("/inv/hosts.toml"))
    assert node.bmc
    assert node.bmc.verify == Path("/inv/false"), "a name of a file never switches verification off"


def done_at_once(bmc: OddBmc, kind: str) -> Reply:
    bmc.state = "Off" if kind in ("ForceOff", "GracefulShutdown") else "On"
    return Reply(204)


def test_what_the_controller_does_not_have() -> None:
    with served(OddBmc(allowed=("On", "ForceOff"))) as url:
        with pytest.raises(
            UnsupportedError, match="does not support GracefulShutdown; it has: On, ForceOff"
        ) as caught:
            switch(url).off(graceful=True, task=Said())
        assert caught.value.hint == "leave out --graceful"
    with (
        served(OddBmc(action={})) as url,
        pytest.raises(UnsupportedError, match="it switches no power by Redfish"),
    ):
        switch(url).off(graceful=False, task=Said())
    with served(OddBmc(extra={"/redfish/v1/Systems": lambda bmc: Reply(body={"Members": []})})) as url:
        assert failed(url).exit_code == ExitCode.UNSUPPORTED


def test_reset_types_may_be_told_elsewhere() -> None:
    info = {"Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceOn", "ForceOff"]}]}
    action = {
        "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
        "@Redfish.ActionInfo": "/redfish/v1/Info",
    }
    bmc = OddBmc(
        "Off", action=action, extra={"/redfish/v1/Info": lambda _: Reply(body=info)}, on_reset=done_at_once
    )
    with served(bmc) as url:
        assert switch(url).on(Said())
    assert bmc.posts == ["ForceOn"]


def test_a_lost_answer_is_not_asked_again_and_the_state_decides() -> None:
    def does_and_hangs_up(bmc: OddBmc, kind: str) -> Reply:
        bmc.state = "Off"
        return Reply(cut=True)

    bmc = OddBmc(on_reset=does_and_hangs_up)
    with served(bmc) as url:
        assert switch(url).off(graceful=False, task=Said())
    assert bmc.posts == ["ForceOff"]
    bmc = OddBmc(on_reset=lambda bmc, kind: Reply(cut=True))
    with served(bmc) as url, pytest.raises(LabError, match=f"not off {FORCED_S:g} s after ForceOff: it says on"):
        switch(url).off(graceful=False, task=Said())
    assert bmc.posts == ["ForceOff"]


TASK = "/redfish/v1/TaskService/TaskMonitors/7"


def accepted(bmc: OddBmc, kind: str) -> Reply:
    return Reply(202, {"TaskState": "New"}, {"Location": f"http://elsewhere.example{TASK}", "Retry-After": "5"})


def test_a_task_that_never_completes() -> None:
    bmc = OddBmc(on_reset=accepted, extra={TASK: lambda _: Reply(202, {"TaskState": "Running"})})
    with served(bmc) as url, pytest.raises(LabError, match="accepted and does not complete: its task is Running"):
        switch(url).off(graceful=False, task=Said())


def test_a_task_that_fails() -> None:
    why = {"TaskState": "Exception", "Messages": [{"Message": "The PSU is stuck."}]}
    with served(OddBmc(on_reset=accepted, extra={TASK: lambda _: Reply(200, why)})) as url:
        with pytest.raises(LabError, match=r"accepted and failed: The PSU is stuck\."):
            switch(url).off(graceful=False, task=Said())


def test_a_task_that_completes() -> None:
    looks: list[int] = []

    def monitor(bmc: OddBmc) -> Reply:
        looks.append(1)
        if len(looks) < 3:
            return Reply(202, {"TaskState": "Running"})
        bmc.state = "Off"
        return Reply(404)  # the monitor is gone with its task

    with served(OddBmc(on_reset=accepted, extra={TASK: monitor})) as url:
        assert switch(url).off(graceful=False, task=Said())


def test_it_is_accepted_and_never_happens() -> None:
    said = Said()
    with served(OddBmc("PoweringOff")) as url, pytest.raises(LabError, match="it says powering off"):
        switch(url).off(graceful=False, task=said)
    assert said.lines[:2] == ["ForceOff asked for", "it says powering off"]


@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (
            Reply(409, {"error": {"@Message.ExtendedInfo": [{"Message": "Busy\nflashing."}]}}),
            70,
            "409: Busy flashing",
        ),
        (Reply(400, {"error": {"message": "no"}}), 70, "refuses ForceOff: HTTP 400: no"),
        (Reply(405, b""), 3, "refuses ForceOff: HTTP 405"),
        (Reply(403), 70, "user lab may not POST"),
        (Reply(401), 70, "refuses user lab"),
    ],
)
def test_the_controller_refuses(reply: Reply, code: int, message: str) -> None:
    with served(OddBmc(on_reset=lambda bmc, kind: reply)) as url, pytest.raises(LabctlError) as caught:
        switch(url).off(graceful=False, task=Said())
    assert caught.value.exit_code == code
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(200, b"<html>hello"), "is not Redfish"),
        (Reply(503), "HTTP 503"),
        (Reply(404), "HTTP 404"),
        (Reply(cut=True), "the connection fails"),
    ],
)
def test_what_is_no_redfish_service(reply: Reply, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with served(OddBmc(extra={"/redfish/v1/": lambda _: reply})) as url:
        error = failed(url)
    assert error.exit_code == ExitCode.LAB_BROKE
    assert message in error.message
    assert capfd.readouterr() == ("", ""), "one line, said by labctl"


class ToyMachines:
    """A QEMU lab of one machine, whose guest shuts down when asked to, or not."""

    def __init__(self, obeys: bool) -> None:
        self.on, self.obeys, self.done = True, obeys, ""

    def runs(self, name: str) -> bool:
        return self.on

    def power_off(self, name: str) -> None:
        self.on, self.done = False, "killed"

    def power_on(self, name: str, progress: Progress | None = None) -> None:
        self.on, self.done = True, "booted"

    def shut_down(self) -> None:
        self.done, self.on = "asked", not self.obeys


def virtual(obeys: bool) -> tuple[ToyMachines, QemuPower]:
    machines, time = ToyMachines(obeys), Time()
    return machines, QemuPower(machines, "w1", machines.shut_down, time.clock, time.sleep)


def test_a_virtual_machine() -> None:
    machines, power = virtual(obeys=True)
    assert (power.state(), power.off(False, Said()), machines.done) == ("on", True, "killed")
    assert (power.state(), power.off(False, Said()), power.off(True, Said())) == ("off", False, False)
    assert (power.on(Said()), power.on(Said()), machines.done) == (True, False, "booted")
    assert (power.off(True, Said()), machines.done, power.state()) == (True, "asked", "off")
    with pytest.raises(LabError, match="did not shut down within 180 s"):
        virtual(obeys=False)[1].off(True, Said())
