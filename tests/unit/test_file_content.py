"""The content of a file as a parameter, from the command line to the node and back in lists."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from labctl.cli.parameters import example_lines, given_parameters, option_for, parameters_of
from node_agent.content import MAX_CHARACTERS, FileContent, decode_content, encode_content, shown
from node_agent.errors import Refusal
from node_agent.fault import Fault, build_fault


class Carried(Fault):
    """A fault with a file."""

    name: ClassVar[str] = "carried"
    summary: ClassVar[str] = "a file travels"
    operator_sees: ClassVar[str] = "a file"
    examples = ({"source": "int x;\nint y;"},)

    source: FileContent = Field(default="", description="a file")


@given(st.binary(max_size=300))
def test_every_content_comes_back(content: bytes) -> None:
    text = encode_content(content)
    assert decode_content(text) == content and "\0" not in text


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"int x;\n", "int x;\n"), (b"\x7fELF\xff", "base64:f0VMRv8="), (b"base64:", None)],
)
def test_text_travels_as_it_is(content: bytes, text: str | None) -> None:
    assert encode_content(content) == (text or "base64:YmFzZTY0Og==")


def test_damaged_and_too_much() -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode_content("base64:***")
    with pytest.raises(ValueError, match="too many"):
        encode_content(b"x" * (MAX_CHARACTERS + 1))
    with pytest.raises(Refusal, match="source"):
        build_fault(Carried, {"source": "x" * (MAX_CHARACTERS + 1)})


def parse(*words: str) -> tuple[int, str, dict[str, object]]:
    """Status, output and parameters of these options."""
    found: dict[str, object] = {}

    @click.pass_context
    def run(ctx: click.Context, /, **options: object) -> None:
        found.update(given_parameters(options, parameters_of(Carried)))

    command = click.command("x", params=[option_for(p) for p in parameters_of(Carried)])(run)
    done = CliRunner().invoke(command, words)
    return done.exit_code, done.output, found


def test_the_option_takes_a_path(tmp_path: Path) -> None:
    file = tmp_path / "my_fault.c"
    file.write_bytes(b"int x;")
    assert parse("--source", str(file))[2] == {"source": "int x;"}
    assert parse()[2] == {}
    file.write_bytes(b"\x7fELF\0")
    assert decode_content(str(parse("--source", str(file))[2]["source"])) == b"\x7fELF\0"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    status, output, _ = parse("--source", str(tmp_path / "none.c"))
    assert status == 2 and "none.c cannot be read: No such file or directory" in output
    assert "cannot be read: Is a directory" in parse("--source", str(tmp_path))[1]
    large = tmp_path / "large"
    large.write_bytes(b"x" * (MAX_CHARACTERS + 1))
    assert "300001 bytes are too many" in parse("--source", str(large))[1]


def test_it_is_shown_as_a_file() -> None:
    (parameter,) = [p for p in parameters_of(Carried) if p.name == "source"]
    assert parameter.kind == "file" and parameter.description == "a file"
    assert example_lines(Carried)[0].endswith("--source FILE")


def test_lists_show_what_sha256sum_shows() -> None:
    content = b"\x7fELF" + b"\xff" * 1000
    digest = hashlib.sha256(content).hexdigest()
    assert shown({"source": encode_content(content), "seed": 3}) == {
        "source": f"(1004 bytes, sha256 {digest})",
        "seed": 3,
    }
    assert shown({"source": "short"}) == {"source": "short"}
