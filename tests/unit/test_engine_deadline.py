"""When a rule ends by the kernel's boot clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebpf.loader.engine import deadline_ns

DAY_S = 86_400.0


def test_what_is_left_of_a_lease_is_left_on_the_other_clock() -> None:
    assert deadline_ns(expires=110.0, steady=100.0, now_ns=int(103e9)) == int(113e9)


@given(st.floats(0, 1000 * DAY_S), st.floats(0, 1000 * DAY_S), st.integers(0, int(1000 * DAY_S * 1e9)))
def test_a_lease_that_is_over_never_becomes_one_for_ever(expires: float, steady: float, now_ns: int) -> None:
    """Also just after boot, with the boot clock a little behind the hardware's."""
    found = deadline_ns(expires, steady, now_ns)
    assert 0 <= found < 2**63
    if expires <= steady:
        assert found <= now_ns


def test_no_lease_at_all_just_after_boot() -> None:
    assert deadline_ns(0.0, 61.000_4, int(61e9)) == 0
