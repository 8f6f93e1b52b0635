"""Talking to a management controller by Redfish, with the client library of the body that standardizes it.

Three things of DMTF's `redfish` are kept in mind here. It repeats any request that got no answer, also one that
switches power, unless told `max_retry=0`. It verifies no certificate unless it gets a file of authorities. And it
reports failures as warnings, log lines and status codes, of which one line with a hint has to be made.

HTTP Basic authentication is used: every service has to have it (DSP0266, "Authentication"), and unlike a session
it leaves nothing on the controller when we are killed.
"""

from __future__ import annotations

import logging
import re
import ssl
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from labctl.errors import LabError, UsageError
from labctl.power.model import Bmc

CONNECT_S, ANSWER_S = 10.0, 30.0
ROOT = "/redfish/v1/"
_REACHABLE = "is bmc.url right, and can this machine reach the management network?"
_SPEAKS_REDFISH = "is bmc.url the management controller? its Redfish service may have to be switched on"


class NoAnswerError(LabError):
    """The controller was reached or not, and in any case did not answer: it may have done what was asked."""


class Answer:
    """What the controller answered, whatever the status."""

    def __init__(self, status: int, body: Mapping[str, Any], location: str, retry_after_s: float) -> None:
        self.status, self.body, self.location, self.retry_after_s = status, body, location, retry_after_s

    def complaint(self) -> str:
        """Its own words for what is wrong: the extended info of DSP0266, "Error responses"."""
        error = self.body.get("error")
        found = error if isinstance(error, Mapping) else self.body
        infos = [i for i in listed(found, "@Message.ExtendedInfo") if isinstance(i, Mapping)]
        said = [str(i["Message"]) for i in infos if i.get("Message")] or [str(found.get("message") or "")]
        return " ".join("; ".join(said).split())[:300]


def listed(data: Mapping[str, Any], key: str) -> list[Any]:
    """A member that should be a list, as one."""
    value = data.get(key)
    return value if isinstance(value, list) else []


class Client:
    """One controller. Use :func:`connected`."""

    def __init__(self, bmc: Bmc, client: Any, library: Any) -> None:
        self._bmc, self._client, self._library = bmc, client, library

    def get(self, path: str) -> Answer:
        """A resource, or a status that is no success. Raises :class:`LabError` where nothing useful came."""
        return self._ask("GET", path, None)

    def resource(self, path: str) -> Mapping[str, Any]:
        """A resource that must be there. Raises :class:`LabError` with the controller's words."""
        answer = self.get(path)
        if answer.status != 200:
            raise LabError(f"{self._bmc.url}: GET {path} gave HTTP {answer.status}: {answer.complaint() or '-'}")
        return answer.body

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Ask once, never twice. :class:`NoAnswerError` where it may have been done without an answer."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        with _quiet():
            try:
                if body is None:
                    done = self._client.get(path, max_retry=0)
                else:
                    done = self._client.post(path, body=dict(body), max_retry=0)
                found = done.dict
            except self._library.RetriesExhaustedError as error:
                raise _no_answer(self._bmc, error.__cause__) from None
            except self._library.JsonDecodingError:
                raise LabError(
                    f"{self._bmc.url}: {method} {path} was not answered in JSON", _SPEAKS_REDFISH
                ) from None
        if done.status == 401:
            raise refused(self._bmc)
        if done.status == 403:
            raise LabError(
                f"{self._bmc.url}: user {self._bmc.user} may not {method} {path}",
                "give it the operator role on the BMC, which may switch power",
            )
        where = urlsplit(done.task_location or "")
        location = where.path + (f"?{where.query}" if where.query else "")
        return Answer(
            done.status, found if isinstance(found, dict) else {}, location, float(done.retry_after or 0)
        )


def refused(bmc: Bmc) -> LabError:
    """The controller does not let us in."""
    place = (
        f"bmc.password_env ({bmc.password_env})"
        if bmc.password_env
        else f"bmc.password_file ({bmc.password_file})"
    )
    return LabError(
        f"{bmc.url}: the BMC refuses user {bmc.user} with this password",
        f"check bmc.user and {place}; is HTTP Basic allowed on the BMC, and the user not locked?",
    )


@contextmanager
def connected(bmc: Bmc) -> Iterator[Client]:
    """A client of a controller that has answered and lets us in. Raises a :class:`LabctlError`."""
    password = bmc.password()
    authorities = _authorities(bmc)
    import redfish.rest.v1 as library

    client = library.HttpClient(
        base_url=bmc.url,
        username=bmc.user,
        password=password,
        timeout=(CONNECT_S, ANSWER_S),
        max_retry=0,
        cafile=authorities,
        check_connectivity=False,
    )
    try:
        _log_in(bmc, client, library)
        yield Client(bmc, client, library)
    finally:
        client.logout()  # closes connections; there is no session to end


def _log_in(bmc: Bmc, client: Any, library: Any) -> None:
    with _quiet():
        try:
            client.login(auth=library.AuthMethod.BASIC)
        except library.InvalidCredentialsError:
            raise refused(bmc) from None
        except library.RetriesExhaustedError as error:
            raise _no_answer(bmc, error.__cause__) from None
        except library.JsonDecodingError:
            raise LabError(f"{bmc.url}: what answers at {ROOT} is not Redfish", _SPEAKS_REDFISH) from None
        except library.ServerDownOrUnreachableError as error:
            status = error.response.status if error.response is not None else 0
            hint = "the BMC is busy: try again in a minute" if status == 503 else _SPEAKS_REDFISH
            raise LabError(f"{bmc.url}: GET {ROOT} gave HTTP {status}", hint) from None


def _authorities(bmc: Bmc) -> str | None:
    """The file or directory of authorities for the library, None for no verification."""
    if bmc.verify is False:
        return None
    if isinstance(bmc.verify, Path):
        if not bmc.verify.exists():
            raise UsageError(f"bmc.verify: {bmc.verify} does not exist", "the file of the BMC's authority, PEM")
        return str(bmc.verify)
    system = ssl.get_default_verify_paths()
    found = system.cafile or system.capath
    if found is None:  # the library would take that for "do not verify"
        raise UsageError("bmc.verify: this machine has no certificate authorities", "install ca-certificates")
    return found


def _no_answer(bmc: Bmc, cause: BaseException | None) -> NoAnswerError:
    """Why there is no answer, in a line; never with headers or bodies in it."""
    import requests.exceptions as went

    if isinstance(cause, went.SSLError):
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            why = re.search(r"certificate verify failed: ([^()]+)", str(cause))
            return NoAnswerError(
                f"{bmc.url}: the BMC's certificate is not trusted: {why[1].strip() if why else 'unknown issuer'}",
                'bmc.verify = "its-authority.pem", or verify = false where you trust the network',
            )
        return NoAnswerError(f"{bmc.url}: TLS fails", "does the BMC speak https on this port?")
    if isinstance(cause, went.ConnectTimeout):
        return NoAnswerError(f"{bmc.url}: no connection within {CONNECT_S:g} s", _REACHABLE)
    if isinstance(cause, went.ReadTimeout):
        return NoAnswerError(
            f"{bmc.url}: no answer within {ANSWER_S:g} s", "a BMC that hangs: reset the BMC itself"
        )
    reason = re.search(
        r"Connection refused|Name or service not known|No route to host|[^']*reset by peer", str(cause)
    )
    return NoAnswerError(f"{bmc.url}: {reason[0] if reason else 'the connection fails'}", _REACHABLE)


@contextmanager
def _quiet() -> Iterator[None]:
    """What the library has to say is said by us: its warnings and log lines hold whole answers."""
    logging.getLogger("redfish").addHandler(_NOWHERE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_NOWHERE = logging.NullHandler()
