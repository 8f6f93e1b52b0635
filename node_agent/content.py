"""The content of a file as a parameter: the user names a file of the client, what is in it travels to the node.

Text travels as it is, everything else in base64 behind a prefix, so that a parameter stays a string in JSON.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

FORMAT = "file-content"
"""What the JSON schema of such a field says of its format: the command line then takes a path."""

MAX_CHARACTERS = 300_000
"""Of the parameter. A request may have a megabyte, and the journal keeps it three times."""

_PREFIX = "base64:"
_SHOWN = 400

FileContent = Annotated[str, Field(max_length=MAX_CHARACTERS, json_schema_extra={"format": FORMAT})]
"""A pydantic field type: a string made by :func:`encode_content`."""


def encode_content(content: bytes) -> str:
    """The bytes as a parameter. Raises ValueError where they are too many."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = _PREFIX
    if text.startswith(_PREFIX) or "\0" in text:
        text = _PREFIX + base64.b64encode(content).decode()
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"{len(content)} bytes are too many; allowed: {MAX_CHARACTERS} of text, 224,000 of others"
        )
    return text


def decode_content(text: str) -> bytes:
    """The bytes of a parameter. Raises ValueError where it is damaged."""
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"damaged base64: {error}") from None


def shown(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for people and lists: of a long text its size and its SHA-256, as sha256sum gives it."""
    return {name: _short(value) for name, value in parameters.items()}


def _short(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= _SHOWN:
        return value
    content = decode_content(value)
    return f"({len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()})"
