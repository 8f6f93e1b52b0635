"""Why the gRPC connection to a node failed, found by a second look.

gRPC tells every failure as "failed to connect to all addresses", and a refused client certificate as "Socket
closed". Python's own `ssl` gives the reason: OpenSSL's verification error, or how far the handshake came. See https://github.com/grpc/grpc/issues/2691.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Callable

from cryptography import x509

from labctl.lab.model import Node
from labctl.pki import LabAuthority, describe_issuer, names_in, node_id
from labctl.transport.base import Cause, ConnectError

NodeClock = Callable[[Node], float | None]
"""Reads a node's wall clock in Unix seconds another way than gRPC; None where it cannot be had."""

# X509_V_ERR_* of OpenSSL's x509_vfy.h, stable since 1.0.
_NOT_YET_VALID, _EXPIRED, _WRONG_NAME = 9, 10, 62
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21, 7)

_ALERTS = {
    "BAD_CERTIFICATE": "",
    "CERTIFICATE_EXPIRED": "it has expired by the node's clock",
    "CERTIFICATE_REQUIRED": "none was shown",
    "UNKNOWN_CA": "it belongs to another lab",
    "UNSUPPORTED_CERTIFICATE": "it is not a client's",
}
"""TLS alerts about a certificate, by OpenSSL's name for them."""


def why_not(
    node: Node, authority: LabAuthority, timeout_s: float, node_clock: NodeClock | None = None
) -> ConnectError | None:
    """What keeps us from the agent of `node`; None where a connection can be made now."""
    try:
        raw = socket.create_connection((node.address, node.agent_port), timeout_s)
    except OSError as error:
        return _no_connection(node, error, timeout_s)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    context.load_verify_locations(authority.ca_file)
    context.load_cert_chain(authority.client_certificate_file, authority.client_key_file)
    context.set_alpn_protocols(["h2"])
    met = False
    with raw:
        raw.settimeout(timeout_s)
        try:
            with context.wrap_socket(raw, server_hostname=node_id(node.name, authority.lab)) as tls:
                # With TLS 1.3 our side is done before the other has looked at our certificate. gRPC core hangs
                # up without an alert when it does not like it; otherwise its first frame follows at once.
                met = True
                return None if tls.recv(1) else _refused(node, authority, "", node_clock)
        except ssl.SSLCertVerificationError as error:
            return _not_verified(node, authority, error, timeout_s)
        except TimeoutError:
            return _late(node, timeout_s)
        except (ssl.SSLEOFError, ConnectionError):
            return _refused(node, authority, "", node_clock) if met else _closed(node)
        except ssl.SSLError as error:
            alert = _ALERTS.get((error.reason or "").partition("ALERT_")[2])
            if alert is None:
                return ConnectError("not_an_agent", f"{_where(node)} is not an agent", "is the port right?")
            return _refused(node, authority, alert, node_clock)


def _where(node: Node) -> str:
    return f"{node.name} at {node.address}:{node.agent_port}"


def _no_connection(node: Node, error: OSError, timeout_s: float) -> ConnectError:
    where = _where(node)
    if isinstance(error, ConnectionRefusedError):
        return ConnectError("refused", f"{where}: nothing listens there", "is the node up and its agent running?")
    if isinstance(error, TimeoutError):
        return _late(node, timeout_s)
    reason = error.strerror or str(error)
    return ConnectError("unreachable", f"{where} cannot be reached: {reason}", "is the address right?")


def _late(node: Node, timeout_s: float) -> ConnectError:
    return ConnectError(
        "timeout",
        f"{_where(node)} does not answer within {timeout_s:g} s",
        "is the node up, is a firewall between?",
    )


def _closed(node: Node) -> ConnectError:
    return ConnectError(
        "closed", f"{_where(node)} hangs up before the handshake", "its agent is not running, or not yet"
    )


def _not_verified(
    node: Node, authority: LabAuthority, error: ssl.SSLCertVerificationError, timeout_s: float
) -> ConnectError:
    certificate = _shown(node, timeout_s)
    if error.verify_code == _EXPIRED:
        when = f" on {_day(certificate.not_valid_after_utc)}" if certificate else ""
        return ConnectError(
            "expired", f"the certificate of {_where(node)} expired{when}", f"the clock here is {_now()}"
        )
    if error.verify_code == _NOT_YET_VALID:
        when = f": it begins on {_day(certificate.not_valid_before_utc)}" if certificate else ""
        return ConnectError(
            "not_yet_valid",
            f"the certificate of {_where(node)} is not yet valid{when}",
            f"the clock here is {_now()}",
        )
    if error.verify_code == _WRONG_NAME:
        wanted = node_id(node.name, authority.lab)
        names = ", ".join(names_in(certificate)) if certificate else ""
        return ConnectError(
            "wrong_name",
            f"{_where(node)} is named {names or 'nothing'} in its certificate, not {wanted}",
            "has the address been given to another node, or the node been renamed?",
        )
    if error.verify_code in _UNKNOWN_ISSUER:
        other = f": its certificate is of {describe_issuer(certificate)}" if certificate else ""
        return ConnectError(
            "other_ca",
            f"{_where(node)} belongs to another CA{other}, ours is lab {authority.lab} ({authority.lab_id})",
            "has another lab taken the address, or was this lab made anew?",
        )
    return ConnectError("not_an_agent", f"the certificate of {_where(node)} is wrong: {error.verify_message}")


def _refused(node: Node, authority: LabAuthority, alert: str, node_clock: NodeClock | None) -> ConnectError:
    """The node turned our certificate down. The usual reason is its clock, so look there."""
    where = _where(node)
    own = x509.load_pem_x509_certificate(authority.client_certificate_file.read_bytes())
    first, last = own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()
    if not first <= time.time() <= last:
        cause: Cause = "expired" if time.time() > last else "not_yet_valid"
        dates = f"{_day(own.not_valid_before_utc)} to {_day(own.not_valid_after_utc)}"
        return ConnectError(
            cause, f"our own certificate for {where} is valid from {dates}", f"the clock here is {_now()}"
        )
    clock = node_clock(node) if node_clock else None
    if clock is not None and not first <= clock <= last:
        what = "expired" if clock > last else "not yet valid"
        told = _day(dt.datetime.fromtimestamp(clock, dt.UTC))
        return ConnectError(
            "node_clock",
            f"{where} refuses our certificate as {what}: node clock is {told}, the clock here is {_now()}",
            "labctl --transport ssh gets there; labctl reset sets the clocks of a virtual lab, "
            "timedatectl that of a real host",
        )
    hint = "was its agent installed for another lab?" if clock else "is its clock far off? SSH cannot tell"
    return ConnectError("client_refused", f"{where} refuses our certificate{alert and ': '}{alert}", hint)


def shown_certificate(node: Node, authority: LabAuthority, timeout_s: float) -> x509.Certificate | None:
    """The certificate that a node's agent shows; None where none can be seen from here."""
    return _shown(node, timeout_s, authority) if node.transport == "grpc" else None


def _shown(node: Node, timeout_s: float, authority: LabAuthority | None = None) -> x509.Certificate | None:
    """The certificate the other side shows, verified or not: only to describe what is wrong with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if authority is not None:  # so that the agent's log does not tell of a stranger
        context.load_cert_chain(authority.client_certificate_file, authority.client_key_file)
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((node.address, node.agent_port), timeout_s) as raw,
            context.wrap_socket(raw) as tls,
        ):
            shown = tls.getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(shown) if shown else None
    except (OSError, ValueError):
        return None


def _day(when: dt.datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def _now() -> str:
    return _day(dt.datetime.fromtimestamp(time.time(), dt.UTC))
