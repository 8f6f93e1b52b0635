"""Names and numbers of errors."""

from __future__ import annotations

import errno
import re

import pytest
from pydantic import BaseModel, ValidationError

from node_agent import errnos


class _Fault(BaseModel):
    errno: errnos.ErrnoName = "EIO"


def test_the_table_is_that_of_this_kernel() -> None:
    here = {n: getattr(errno, n) for n in dir(errno) if re.fullmatch(r"E[A-Z0-9]+", n)}
    assert here.items() <= dict(errnos.NUMBERS).items()
    assert set(errnos.NAMES) == set(errno.errorcode) | {133}  # EHWPOISON, which Python leaves out
    assert {errnos.name(n) for n in errno.errorcode} <= set(here)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("EIO", 5), ("eio", 5), (" ENOMEM ", 12), ("EWOULDBLOCK", 11), ("110", 110), ("4095", 4095)],
)
def test_names_and_numbers_are_understood(text: str, wanted: int) -> None:
    assert errnos.number(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "4096", "-5", "5.0", "1" * 5000, "²", "OK", "None"])
def test_what_is_no_errno_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an errno"):
        errnos.number(text)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean ECONNREFUSED"):
        errnos.number("ECONREFUSED")


def test_a_number_without_a_name_stays_a_number() -> None:
    assert (errnos.name(5), errnos.name(11), errnos.name(517)) == ("EIO", "EAGAIN", "517")
    for bad in (0, -5, 4096):
        with pytest.raises(ValueError, match="1 to 4095"):
            errnos.name(bad)


@pytest.mark.parametrize(("given", "kept"), [("eio", "EIO"), (5, "EIO"), ("EWOULDBLOCK", "EAGAIN"), ("41", "41")])
def test_a_field_keeps_the_name(given: object, kept: str) -> None:
    assert _Fault.model_validate({"errno": given}).errno == kept


@pytest.mark.parametrize("given", [True, 0, 3.5, None, "EIEIO"])
def test_a_field_refuses_the_rest(given: object) -> None:
    with pytest.raises(ValidationError):
        _Fault.model_validate({"errno": given})


def test_the_schema_says_what_it_takes() -> None:
    field = _Fault.model_json_schema()["properties"]["errno"]
    assert field["type"] == "string" and "EIO" in field["description"]
