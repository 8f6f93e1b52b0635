"""Hardware faults by the commands of every fault, and the watchdog of a lab."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any, cast

import pytest

from labctl.errors import UnsupportedError, UsageError
from labctl.hardware import overlay, watchdog
from labctl.hardware.keeper import Keeper
from labctl.hardware.standing_in import deputy_of, stand_in
from labctl.transport.client import AgentClient
from node_agent.fault import build_fault
from tests.unit.cli_world import World
from tests.unit.hardware_bench import ToyMachine


@pytest.fixture
def machine(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyMachine:
    """The machine below w1 of the toy lab."""

    def qemu_img(argv: tuple[str, ...], what: str, **more: Any) -> str:
        if argv[1] == "create":
            Path(argv[-2]).touch()
        return ""

    monkeypatch.setattr(overlay, "run", qemu_img)
    one = ToyMachine(tmp_path / "lab")
    world.below["w1"] = one.injector()
    return one


def test_it_is_listed_and_shown_like_any_fault(world: World) -> None:
    assert "medium_error" in world.run("faults", "list").out
    shown = world.run("faults", "show", "medium_error").out
    assert "--sector" in shown and "labctl inject medium_error --node NODE --file /srv/data/x" in shown
    assert world.run("faults", "show", "disk-degraded", "--json").data["schema"]["properties"]["iops"]


def test_plan_changes_nothing(world: World, machine: ToyMachine) -> None:
    done = world.run("inject", "medium_error", "-n", "w1", "--sector", "2048+8", "--plan")
    assert done.code == 0 and "sector 2048+8 of the data disk" in done.out and "only planned" in done.out
    assert "data0" in machine.qemu.nodes and len(machine.qemu.nodes) == 1


def test_inject_list_evidence_extend_recover(world: World, machine: ToyMachine) -> None:
    done = world.run("inject", "medium_error", "-n", "w1", "--sector", "2048+8", "--id", "bad", "--for", "60s")
    assert done.code == 0, done.err
    assert "medium_error is active on w1, injection bad" in done.out
    (one,) = world.run("injections", "--json").data["injections"]
    assert (one["id"], one["node"], one["state"]) == ("bad", "w1", "active")
    assert "seen: sense key" in world.run("evidence", "bad").out
    assert world.run("extend", "bad", "--for", "2m").code == 0
    assert "1 live" in world.run("status").out
    assert world.run("inject", "nmi", "-n", "w1", "--id", "bad").code == 64, "one id, one injection"
    done = world.run("recover", "bad")
    assert done.code == 0 and "bad (medium_error on w1): recovered" in done.out
    assert world.run("injections").out.strip() == "no live injections"
    assert world.run("watch", "bad", "--interval", "0.1").code == 0


def test_stop_heals_and_refuses(world: World, machine: ToyMachine) -> None:
    world.run("inject", "nic_link_down", "-n", "w1", "--id", "cut")
    assert world.run("stop").code == 0 and machine.qemu.link
    assert world.run("inject", "nmi", "-n", "w1").code == 70
    world.run("stop", "--clear")
    assert world.run("inject", "nmi", "-n", "w1").code == 0


def test_an_agent_that_cannot_answer_is_not_asked(world: World, machine: ToyMachine) -> None:
    assert world.run("inject", "node_frozen", "-n", "w1", "--id", "ice").code == 0
    world.down["w1"] = "lost"
    done = world.run("status")
    assert done.code == 0 and "node_frozen, injection ice" in done.out
    assert "ice" in world.run("injections").out
    done = world.run("recover", "ice")
    assert done.code == 0 and machine.qemu.running, done.err


def test_another_provider_has_no_hold_of_the_machine(world: World) -> None:
    done = world.run("inject", "medium_error", "-n", "w1", "--sector", "8")
    assert done.code == 3 and "below the operating system" in done.err and "labctl up" in done.err


def test_the_watchdog_tends_until_nothing_is_live(tmp_path: Path) -> None:
    machine = ToyMachine(tmp_path)
    machine.injector().apply("abc", "nic_link_down", {}, 5)
    looks = []

    def tend(name: str) -> None:
        looks.append(watchdog.is_awake(tmp_path))
        machine.now += 2
        machine.injector().tend()

    assert not watchdog.is_awake(tmp_path)
    watchdog.watch(tmp_path, tend, sleep=lambda seconds: None)
    assert looks == [True] * 3 and machine.qemu.link and not watchdog.is_awake(tmp_path)


def test_a_second_watchdog_leaves_it_to_the_first(tmp_path: Path) -> None:
    machine = ToyMachine(tmp_path)
    machine.injector().apply("abc", "nic_link_down", {}, 5)
    with (tmp_path / "hardware" / "watchdog.lock").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        watchdog.watch(tmp_path, lambda name: pytest.fail("both tend"))
    machine.injector().recover(("abc",))
    watchdog.watch(tmp_path / "destroyed", lambda name: None)


PLACE = {
    "disk": "data",
    "file": "",
    "pieces": [{"base_start": 8, "length": 8}, {"base_start": 16, "length": 8}, {"base_start": 64, "length": 8}],
}


@pytest.mark.parametrize(
    ("parameters", "place", "instead"),
    [
        (
            {"file": "/x", "sectors": 8, "seed": 3, "schedule": "always"},
            {},
            {"file": "/x", "sectors": 8, "seed": 3},
        ),
        ({"range": "0+24", "permanent": True}, {}, {"sector": ["8+16", "64+8"], "permanent": True}),
        ({}, {}, {"sector": ["8+16", "64+8"]}),
        ({"file": "/x", "schedule": "burst:2/1"}, {}, None),
        ({"file": "/x"}, {"disk": "spare"}, None),
        ({}, {"pieces": [{"base_start": 100 * i, "length": 8} for i in range(65)]}, None),
    ],
)
def test_what_latent_sector_error_is_below_the_system(
    parameters: dict[str, Any], place: dict[str, Any], instead: dict[str, Any] | None
) -> None:
    deputy = deputy_of("latent_sector_error")
    assert deputy is not None and deputy_of("nothing") is None
    assert deputy.instead_of(parameters, PLACE | place) == instead
    if instead is not None:
        build_fault(deputy, instead)


@pytest.mark.parametrize(
    ("backend", "below"), [("auto", True), ("hypervisor", True), ("dm", False)], ids=["auto", "hypervisor", "dm"]
)
def test_where_it_is_planted(tmp_path: Path, backend: str, below: bool) -> None:
    machine = ToyMachine(tmp_path)
    keeper = Keeper(lambda: cast(AgentClient, machine.agent), machine.injector(), "qemu")
    if below:
        plan = keeper.plan("abc", "latent_sector_error", {"file": "/srv/data/x", "backend": backend})
        assert plan.fault == "medium_error" and any("--backend dm" in text for text in plan.warnings)
    else:
        plain = keeper.plan("abc", "latent_sector_error", {"file": "/srv/data/x", "backend": backend})
        assert not hasattr(plain, "fault"), "what the agent answered"


def test_auto_takes_the_kernel_where_the_hardware_is_held_and_hypervisor_refuses(
    machine: ToyMachine,
) -> None:
    machine.injector().apply("first", "medium_error", {"sector": ["8"]}, 60)
    agent = lambda: cast(AgentClient, machine.agent)  # noqa: E731
    wanted = {"file": "/srv/data/x", "schedule": "burst:2/1", "backend": "hypervisor"}
    assert stand_in("latent_sector_error", wanted | {"backend": "auto"}, machine.injector(), agent) is None
    machine.injector().recover(("first",))
    with pytest.raises(UsageError, match="cannot do what these parameters say"):
        stand_in("latent_sector_error", wanted, machine.injector(), agent)
    with pytest.raises(UnsupportedError, match="no hold of the machine"):
        stand_in("latent_sector_error", wanted, None, agent)
    assert stand_in("latent_sector_error", wanted | {"backend": "auto"}, None, agent) is None
