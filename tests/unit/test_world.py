"""A real lab as a world, with keepers and logins of plain objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from disk_faults.disk_full import DiskFull
from disk_faults.latent_sector_error import LatentSectorError
from labctl.errors import LabError
from labctl.hardware.faults.medium_error import MediumError
from labctl.hardware.faults.node_frozen import NodeFrozen
from labctl.hardware.keeper import Keeper
from labctl.lab.model import Node
from labctl.lab.remote import Output
from labctl.run.hardware_actions import HardwareActions
from labctl.run.lock import run_lock
from labctl.run.noise import NoiseMaker
from labctl.run.problem import Planted
from labctl.run.shells import AT_ONCE, FRESH_S, SCRIPT_MOST, Shells
from labctl.run.solvers.access import Access
from labctl.run.world import LabWorld
from node_agent.api.views import InjectionList
from node_agent.fault import Evidence
from node_agent.faults.network.packet_loss import PacketLoss
from node_agent.injection import InjectionView
from node_agent.signs import SignSeen

from .solving import Notebook
from .test_hardware_actions import Toys

NODES = ("w1", "w2")


@dataclass
class Remotes:
    """Logins that are counted. `answers`: what a script does on a node; an exception is raised."""

    answers: Callable[[str, str], Output | Exception] = lambda node, script: Output(0, "", "")
    logins: list[str] = field(default_factory=list)
    ran: list[tuple[str, str]] = field(default_factory=list)
    clock: float = 0.0

    @contextmanager
    def login(self, node: Node) -> Iterator[Any]:
        self.logins.append(node.name)
        yield _Remote(node, self)

    def shells(self) -> Shells:
        nodes = [Node(name=name, address="127.0.0.1") for name in NODES]
        return Shells(lambda: nodes, self.login, lambda: self.clock)


@dataclass
class _Remote:
    node: Node
    world: Remotes

    def run(self, argv: tuple[str, ...], *, timeout_s: float = 60.0, stdin: object = None) -> Output:
        self.world.ran.append((self.node.name, argv[-1]))
        found = self.world.answers(self.node.name, argv[-1])
        if isinstance(found, Exception):
            raise found
        return found


def test_one_login_a_node_is_kept() -> None:
    remotes = Remotes()
    shells = remotes.shells()
    for _ in range(3):
        shells.sh("w1", "date")
    shells.sh("w2", "date")
    assert remotes.logins == ["w1", "w2"] and remotes.ran == [("w1", "date")] * 3 + [("w2", "date")]
    shells.close()
    shells.close()
    assert shells.sh("w1", "date").status == 0 and remotes.logins == ["w1", "w2", "w1"]


def test_a_login_that_broke_is_made_anew() -> None:
    broken = [True]
    remotes = Remotes(lambda node, script: LabError("broken") if broken[0] else Output(0, "", ""))
    shells = remotes.shells()
    with pytest.raises(LabError):
        shells.sh("w1", "date")
    broken[0] = False
    assert shells.sh("w1", "date").status == 0 and remotes.logins == ["w1", "w1"]


def test_an_old_login_is_tried_before_it_is_used() -> None:
    dead = [False]
    remotes = Remotes(lambda node, script: LabError("gone") if dead[0] and script == "true" else Output(0, "", ""))
    shells = remotes.shells()
    shells.sh("w1", "date")
    remotes.clock += FRESH_S + 1
    shells.sh("w1", "date")
    assert remotes.logins == ["w1"] and ("w1", "true") in remotes.ran
    remotes.clock += FRESH_S + 1
    dead[0] = True
    shells.sh("w1", "date")
    assert remotes.logins == ["w1", "w1"]


def test_many_threads_share_a_login_within_what_sshd_allows() -> None:
    now, most = [0], [0]
    lock = threading.Lock()
    full = threading.Event()

    def busy(node: str, script: str) -> Output:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == AT_ONCE:
                full.set()
        full.wait(20)
        with lock:
            now[0] -= 1
        return Output(0, "", "")

    shells = Remotes(busy).shells()
    threads = [threading.Thread(target=shells.sh, args=("w1", "date")) for _ in range(3 * AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most[0] == AT_ONCE


def test_scripts_are_bounded() -> None:
    with pytest.raises(ValueError, match="more than"):
        Remotes().shells().sh("w1", "x" * (SCRIPT_MOST + 1))


# -- the world ----------------------------------------------------------------------------------------------------


@dataclass
class ToyKeeper:
    """Injections of one node. `hits_at_planting`: what the evidence says then."""

    node: str
    hits_at_planting: int = 0
    there: dict[str, InjectionView] = field(default_factory=dict)
    unreachable: bool = False
    residue: tuple[str, ...] = ()

    def apply(self, name: str, fault: str, parameters: Mapping[str, Any], lease_s: float = 0) -> InjectionView:
        evidence = Evidence(armed=True, hits=self.hits_at_planting)
        self.there[name] = InjectionView(
            id=name, node=self.node, fault=fault, parameters=parameters, state="active", target="", backend="",
            lease_s=lease_s, expires_in_s=lease_s, age_s=0, evidence=evidence,
        )  # fmt: skip
        return self.there[name]

    def list(self, ended: bool = False, ids: tuple[str, ...] = (), timeout_s: float = 15) -> InjectionList:
        if self.unreachable:
            raise LabError(f"{self.node} does not answer")
        wanted = [v for v in self.there.values() if (not ids or v.id in ids) and (ended or v.state == "active")]
        return InjectionList(injections=tuple(wanted), stopped=False)

    def recover(self, ids: tuple[str, ...] = (), everything: bool = False) -> InjectionList:
        if self.unreachable:
            raise LabError(f"{self.node} does not answer")
        named = [v.id for v in self.there.values() if v.state == "active"] if everything else list(ids)
        for one in named:
            state = "stuck" if self.residue else "recovered"
            self.change(one, state=state, reason="recover", residue=self.residue)
        return InjectionList(injections=tuple(self.there[one] for one in named), stopped=False)

    @property
    def below(self) -> tuple[InjectionView, ...]:
        return ()

    def change(self, name: str, **more: Any) -> None:
        self.there[name] = self.there[name].model_copy(update=more)

    def bite(self, name: str, hits: int, signs: int = 0) -> None:
        seen = tuple(SignSeen(kind="log", what=f"{n}", when="", seen=True, found="x") for n in range(signs))
        self.change(name, evidence=Evidence(armed=True, hits=hits, signs=seen))

    def boot(self, reason: str = "restart") -> None:
        for one in self.there.values():
            if one.state == "active":
                self.change(one.id, state="recovered", reason=reason)


@dataclass
class Lab:
    """A world and what it is made of."""

    remotes: Remotes = field(default_factory=Remotes)
    keepers: dict[str, ToyKeeper] = field(default_factory=lambda: {name: ToyKeeper(name) for name in NODES})
    toys: Toys = field(default_factory=Toys)
    notes: Notebook = field(default_factory=Notebook)
    resets: int = 0

    def world(self, *, reset: bool = True) -> LabWorld:
        shells = self.remotes.shells()
        return LabWorld(
            lab=shells, keepers=cast("Mapping[str, Keeper]", self.keepers), load=cast("Any", None),
            solver=cast("Any", None), access=Access(shells, root=False),
            hands=HardwareActions(NODES, self.toys, self.notes, sleep=lambda seconds: None),
            noise=NoiseMaker((), cast("Any", None), self.notes), note=self.notes, lease_s=60.0,
            reset=self._reset if reset else None, ready=lambda node: self.notes("ready", node=node),
            sleep=lambda seconds: None,
        )  # fmt: skip

    def _reset(self) -> None:
        self.resets += 1


@pytest.fixture
def lab() -> Lab:
    return Lab()


def planted(fault: Any, **more: Any) -> Planted:
    return Planted(fault=fault, node="w2", **more)


def test_only_what_bites_after_the_planting_counts(lab: Lab) -> None:
    """A fault that proves itself has bitten already, and that says nothing."""
    world, w2 = lab.world(), lab.keepers["w2"]
    w2.hits_at_planting = 8
    name = world.plant(planted(LatentSectorError(file="/srv/data/x")))
    assert world.hits(name) == 0
    w2.bite(name, 11)
    assert world.hits(name) == 3 and w2.there[name].lease_s == 60.0


def test_what_its_victims_hit_right_at_the_planting_counts(lab: Lab) -> None:
    world, w2 = lab.world(), lab.keepers["w2"]
    w2.hits_at_planting = 2
    name = world.plant(planted(PacketLoss(loss_percent=5)))
    assert world.hits(name) == 2


def test_signs_in_the_guest_count_for_hardware(lab: Lab) -> None:
    world, w2 = lab.world(), lab.keepers["w2"]
    w2.hits_at_planting = 4
    name = world.plant(planted(MediumError(file="/srv/data/x")))
    assert world.hits(name) == 0
    w2.bite(name, 4, signs=2)
    assert world.hits(name) == 2
    assert world.hits(world.plant(planted(NodeFrozen()))) == 4, "a machine that stands still bites at once"


@pytest.mark.parametrize(
    ("fault", "reason", "again"),
    [
        (PacketLoss(loss_percent=5), "restart", True),
        (MediumError(file="/srv/data/x"), "power on", True),
        (PacketLoss(loss_percent=5), "recover", False),
        (DiskFull(), "restart", False),
    ],
)
def test_a_boot_mends_no_hardware(fault: Any, reason: str, again: bool, lab: Lab) -> None:
    world, w2 = lab.world(), lab.keepers["w2"]
    name = world.plant(planted(fault))
    w2.bite(name, 3)
    before = world.hits(name)
    w2.boot(reason)
    assert world.hits(name) == before
    live = [one for one in w2.there.values() if one.state == "active"]
    assert bool(live) is again and bool(lab.notes.of("planted_again")) is again
    if again:
        w2.bite(live[0].id, 2 + w2.hits_at_planting)
        assert world.hits(name) == before + 2


def test_a_fault_that_was_ended_is_not_planted_again(lab: Lab) -> None:
    world, w2 = lab.world(), lab.keepers["w2"]
    name = world.plant(planted(PacketLoss(loss_percent=5)))
    world.end(name)
    w2.change(name, reason="restart")
    world.booted("w2")
    assert len(w2.there) == 1


def test_hands_that_boot_a_node_leave_its_hardware_as_it_was(lab: Lab) -> None:
    world, w2 = lab.world(), lab.keepers["w2"]
    world.plant(planted(PacketLoss(loss_percent=5)))
    w2.boot()
    world.booted("w2")
    assert [one.state for one in w2.there.values()] == ["recovered", "active"]
    w2.unreachable = True
    world.booted("w2")
    assert lab.notes.of("unseen")[0]["problem"] == "w2 does not answer"


def test_what_does_not_end_is_told(lab: Lab) -> None:
    world, w2 = lab.world(), lab.keepers["w2"]
    name = world.plant(planted(PacketLoss(loss_percent=5)))
    w2.residue = ("a qdisc",)
    with pytest.raises(LabError, match="w2: packet_loss does not end: a qdisc"):
        world.end(name)
    w2.there[name] = w2.there[name].model_copy(update={"state": "active"})
    lab.keepers["w1"].unreachable = True
    assert world.recover() == ("w1 does not answer", "w2: packet_loss: a qdisc")


def test_the_end_gives_power_to_what_hands_left_without(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.toys, "state", lambda node: "off" if node == "w2" else "on")
    assert lab.world().recover() == () and lab.toys.did == ["on w2"]


def test_it_begins_with_the_snapshot(lab: Lab) -> None:
    lab.world().prepare()
    assert lab.resets == 1 and lab.notes.of("prepared")[0]["reset"] is True


def test_a_lab_with_faults_is_not_taken_as_it_is(lab: Lab) -> None:
    world = lab.world(reset=False)
    world.prepare()
    assert lab.resets == 0
    world.plant(planted(PacketLoss(loss_percent=5)))
    with pytest.raises(LabError, match="the lab has faults already: w2: packet_loss") as error:
        world.prepare()
    assert "labctl recover --all" in error.value.hint


def test_a_challenge_that_boots_a_node_is_waited_for(lab: Lab) -> None:
    boots = iter(["one", "one", "", "two"])

    def answer(node: str, script: str) -> Output | Exception:
        if script == "systemctl reboot":
            return LabError("the SSH connection broke")
        said = next(boots) if "boot_id" in script else ""
        return Output(0, said, "") if said or "boot_id" not in script else LabError("no answer")

    lab.remotes.answers = answer
    lab.world().challenge("w2", "systemctl reboot")
    assert lab.notes.of("ready") == [{"node": "w2"}]


def test_a_challenge_tells_what_it_did_and_needs_an_answer(lab: Lab) -> None:
    lab.remotes.answers = lambda node, script: Output(3, "out", "err")
    lab.world().challenge("w2", "systemctl restart x")
    assert lab.notes.of("done") == [{"node": "w2", "status": 3, "said": "outerr"}]
    lab.world().challenge("hardware", "power-cycle w2")
    assert lab.toys.did == ["reset w2"]
    lab.remotes.answers = lambda node, script: LabError("w2 does not answer")
    with pytest.raises(LabError, match="does not answer"):
        lab.world().challenge("w2", "systemctl restart x")


def test_two_runs_on_one_lab(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with run_lock(path, "mine", "a run of reads_fail"):
        with pytest.raises(LabError, match=r"lab mine is taken by a run of reads_fail, pid \d+"):
            with run_lock(path, "mine", "another"):
                pass
    with run_lock(path, "mine", "another"):
        pass
