"""Session tokens: signed by whichever instance opened the session, believed by all that share the secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

LIFETIME_S = 120
LEEWAY_S = 5
"""How far the clocks of two instances may be apart before one calls a token of the other not yet valid."""


class TokenError(Exception):
    """A token that is not believed, and why."""


def issue(secret: bytes, user: str, now: float) -> str:
    """A token for `user`, valid from now on."""
    claims = {"user": user, "iat": int(now), "exp": int(now) + LIFETIME_S}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"{body}.{_sign(secret, body)}"


def check(secret: bytes, token: str, now: float) -> str:
    """The user of a token. Raises :class:`TokenError`."""
    body, _, signature = token.partition(".")
    if not hmac.compare_digest(signature, _sign(secret, body)):
        raise TokenError("bad signature")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if now < claims["iat"] - LEEWAY_S:
        raise TokenError("token is not yet valid")
    if now >= claims["exp"] + LEEWAY_S:
        raise TokenError("token has expired")
    return str(claims["user"])


def _sign(secret: bytes, body: str) -> str:
    digest = hmac.digest(secret, body.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
