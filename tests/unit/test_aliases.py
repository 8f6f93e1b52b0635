"""The 47 names of the known injector: each has a fault that is built, or is known by name to be pending."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from node_agent import aliases
from node_agent.aliases import ALIASES, Alias
from node_agent.catalog import catalog, find_fault, make_fault, resolve, sample_fault
from node_agent.errors import NotFoundError, Refusal, UnsupportedError
from node_agent.fault import Missing
from node_agent.injector import Injector
from tests.contract.simulated import SimulatedHost, fresh_kernel
from tests.unit.toys import ToyDelay, ToyError

_KNOWN = """
    read_error pread_error write_error pwrite_error fsync_error open_error close_fail dup_fail getrandom_fail
    gettimeofday_fail ioctl_fail cuda_malloc_fail getaddrinfo_fail nanosleep_throttle nanosleep_interrupt fork_fail
    clock_drift setns_fail prlimit_fail socket_block mmap_fail mmap_oom brk_fail mlock_fail bind_enetdown
    mount_io_error force_close_ret_err force_read_ret_ok force_open_ret_eperm force_mmap_eagain force_brk_eagain
    force_mlock_eperm force_mprotect_eacces force_swapon_einval oom_memchunk oom_heapspace oom_nonswap
    hfrag_memchunk hfrag_heapspace ptable_permit stack_rndsegfault thrash_swapon thrash_swapoff memleak_munmap
    packet_loss_sendto packet_loss_recvfrom latent_sector_error
"""
KNOWN = tuple(_KNOWN.split())
OLD_NAME = "block_read_error"
"""What latent_sector_error was called before."""

PENDING: Mapping[str, str] = {}
"""Names whose fault is not built yet. Whoever builds one takes its names out of here."""


def test_all_47_names_are_here() -> None:
    assert len(KNOWN) == len(set(KNOWN)) == 47
    assert set(ALIASES) == {*KNOWN, OLD_NAME}


def test_the_pending_ones_are_exactly_those_listed() -> None:
    """Fails when a fault was built, too: its names then work and are no longer pending."""
    missing = {name: alias.fault for name, alias in ALIASES.items() if alias.fault not in catalog()}
    assert missing == dict(PENDING)


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_gives_its_fault_or_says_that_it_is_pending(name: str) -> None:
    alias = ALIASES[name]
    if name in PENDING:
        with pytest.raises(UnsupportedError, match=f"{name} is pending: {alias.fault} is not built yet"):
            resolve(name)
        return
    cls, presets = resolve(name)
    assert cls is find_fault(alias.fault)
    assert set(presets) <= set(cls.model_fields), f"{cls.name} has no such parameters"
    try:
        cls.model_validate(dict(presets))
    except ValidationError as error:  # what the user has to say in any case may be missing, and nothing else
        assert {e["type"] for e in error.errors()} == {"missing"}, f"presets of {name}: {error}"


@pytest.mark.parametrize("name", ALIASES)
def test_a_name_that_is_a_fault_means_that_fault(name: str) -> None:
    alias = ALIASES[name]
    assert alias.promise
    if name in catalog() or name == alias.fault:
        assert alias == Alias(name, alias.promise), f"{name} is a fault by now: its alias must mean it, unchanged"


TOYS = {
    "toy_reads": Alias("toy_error", "toys cannot be read", {"file": "/a", "sectors": 3}),
    "toy_delay": Alias("toy_error", "hides a fault"),
    "toy_later": Alias("toy_drift", "toys drift"),
}


@pytest.fixture
def toy_aliases(toy_faults: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "ALIASES", TOYS)


@pytest.mark.usefixtures("toy_aliases")
class TestResolving:
    def test_presets_are_defaults(self) -> None:
        assert make_fault("toy_reads", {}) == ToyError(file="/a", sectors=3)
        assert make_fault("toy_reads", {"sectors": 9, "seed": 4}) == ToyError(file="/a", sectors=9, seed=4)

    def test_a_bad_parameter_is_refused_as_ever(self) -> None:
        with pytest.raises(Refusal, match="toy_error: sectors"):
            make_fault("toy_reads", {"sectors": 99})

    def test_a_fault_goes_before_an_alias(self) -> None:
        assert resolve("toy_delay") == (ToyDelay, {})

    def test_names_that_are_neither(self) -> None:
        with pytest.raises(NotFoundError) as unknown:
            resolve("toy_read")
        assert "toy_reads" in unknown.value.allowed
        with pytest.raises(UnsupportedError, match="toy_later is pending: toy_drift is not built yet"):
            resolve("toy_later")


def test_a_fault_that_needs_a_parameter_is_asked_with_its_example() -> None:
    assert sample_fault(ToyError) == ToyError(file="/srv/data/a")

    class Hopeless(ToyError):
        examples = ({"sectors": 0},)

    hopeless = sample_fault(Hopeless)
    assert isinstance(hopeless, Missing) and "none of its examples is valid" in hopeless.reason


def test_the_agent_answers_for_every_fault_whatever_its_defaults(
    toy_faults: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyError, "examples", ({"file": 3},))
    injector = Injector(SimulatedHost(fresh_kernel()), tmp_path, "w1")
    answers = dict(injector.support())
    assert answers["toy_delay"] == ()
    assert answers["toy_error"][0].reason.startswith("none of its examples is valid: toy_error: file")


def test_an_agent_takes_an_alias_over_either_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What labctl resolves and what another client sends by its alias are one injection."""
    presets: dict[str, Any] = {"permanent": True}
    monkeypatch.setattr(aliases, "ALIASES", {"bad_disk": Alias("latent_sector_error", "bad", presets)})
    injector = Injector(SimulatedHost(fresh_kernel()), tmp_path, "w2")
    assert injector.plan("inj-1", "bad_disk", {}).fault == make_fault("latent_sector_error", presets)
    planted = injector.apply("inj-1", "bad_disk", {"seed": 5})
    assert (planted.fault, planted.parameters["permanent"]) == ("latent_sector_error", True)
    assert injector.apply("inj-1", "latent_sector_error", {"permanent": True, "seed": 5}).id == "inj-1"
    injector.recover(None, "recover")
