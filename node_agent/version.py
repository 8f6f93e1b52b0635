"""The version of the code that runs, and of the contract it speaks."""

from __future__ import annotations

VERSION = "0.1.0"
CONTRACT = 1
"""Raised when a change to the protobuf contract is not compatible; the package in agent.proto is then named after
it, so that agents of another contract know none of its methods. What is only added, a method or a field, is
compatible: an agent without it says so."""
