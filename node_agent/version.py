"""The version of the code that runs, and of the contract it speaks."""

from __future__ import annotations

VERSION = "0.1.0"
CONTRACT = 1
"""Raised when a change to the protobuf contract is not compatible."""
