"""The certificates that this agent lets in no more, though their authority signed them.

gRPC for Python takes no list of its own (CRL), so each request is looked at. The file is written by `labctl
operator revoke` over SSH; a change counts from the next request on.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
from pathlib import Path

from node_agent.errors import RevokedError

FILE = "revoked"
_LINE = re.compile(r"([0-9a-f]{64}) (\S+) (\S+)")
"""SHA-256 of the certificate, the name in it, the day it was revoked."""


def fingerprint(pem: bytes) -> str:
    """The SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` counts it."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()


class Revoked:
    """The list in a file; no file: nobody is revoked. Safe to use from many threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._list: dict[str, str] = {}
        self._broken = ""

    def check(self, pem: bytes) -> None:
        """Raises :class:`RevokedError` for a certificate of the list, and for all where it cannot be read."""
        with self._lock:
            self._look()
            broken, known = self._broken, self._list
        if broken:
            raise RevokedError(f"the list of revoked certificates cannot be read: {broken}",
                               allowed="labctl operator push; over SSH all is as before")  # fmt: skip
        when = known.get(fingerprint(pem)) if known else None
        if when:
            raise RevokedError(f"this certificate was revoked on {when}",
                               allowed="another one, from who keeps the lab: labctl operator add")  # fmt: skip

    def _look(self) -> None:
        try:
            now = self._path.stat()
        except FileNotFoundError:
            self._seen, self._list, self._broken = (), {}, ""
            return
        seen = (now.st_mtime_ns, now.st_size, now.st_ino)
        if seen == self._seen:
            return
        try:
            self._list, self._broken = _read(self._path.read_text("utf8"))
        except (OSError, UnicodeDecodeError) as error:
            self._list, self._broken = {}, str(error)
        self._seen = seen


def _read(text: str) -> tuple[dict[str, str], str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            return {}, f"line {number} is not understood"
        found[match[1]] = match[3]
    return found, ""
