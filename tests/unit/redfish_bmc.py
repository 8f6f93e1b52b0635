"""Management controllers to test against: a real emulator of Redfish (sushy-tools), and one that misbehaves."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from labctl.lab import ports

PASSWORD = "Tr0ub4dor&3"
START_S = 60.0

_QUICK = """
import random, sys
random.randint = lambda low, high: low  # how many seconds the emulated hardware takes
from sushy_tools.emulator.main import main
sys.exit(main())
"""


@contextmanager
def emulator(directory: Path, names: tuple[str, ...], tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """A sushy-emulator on loopback with these systems; its URL. User `lab` has :data:`PASSWORD`."""
    port = ports.choose(1)[0]
    users = directory / "users"
    users.write_text(f"lab:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    systems = [
        {"uuid": f"00000000-0000-0000-0000-00000000000{n}", "name": name, "power_state": "Off", "nics": []}
        for n, name in enumerate(names, 1)
    ]
    settings: dict[str, Any] = {
        "SUSHY_EMULATOR_LISTEN_IP": "127.0.0.1",
        "SUSHY_EMULATOR_LISTEN_PORT": port,
        "SUSHY_EMULATOR_AUTH_FILE": str(users),
        "SUSHY_EMULATOR_STATE_DIR": str(directory),
        "SUSHY_EMULATOR_FAKE_SYSTEMS": systems,
    }
    if tls:
        settings |= {"SUSHY_EMULATOR_SSL_CERT": str(tls[0]), "SUSHY_EMULATOR_SSL_KEY": str(tls[1])}
    config = directory / "emulator.conf"
    config.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    with (directory / "emulator.log").open("wb") as log:
        argv = (sys.executable, "-c", _QUICK, "--fake", "--config", str(config))
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=directory)
    try:
        _wait_for(port, process, directory / "emulator.log")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while ports.is_free(port):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bmc")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "bmc.pem", directory / "bmc.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(key.private_bytes(*encoding))
    return cert_file, key_file


@dataclass
class Reply:
    """What to answer; `cut` hangs up instead."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"


@dataclass
class OddBmc:
    """A controller with one system that does what a test wants. `posts` are the reset types it was asked for."""

    state: str = "On"
    allowed: tuple[str, ...] = ("On", "ForceOff", "GracefulShutdown")
    action: dict[str, Any] | None = None
    on_reset: Callable[[OddBmc, str], Reply] = lambda bmc, kind: Reply(204)
    extra: dict[str, Callable[[OddBmc], Reply]] = field(default_factory=dict)
    posts: list[str] = field(default_factory=list)

    def get(self, path: str) -> Reply:
        """The few resources of such a controller."""
        if path in self.extra:
            return self.extra[path](self)
        action = {"target": RESET, "ResetType@Redfish.AllowableValues": list(self.allowed)}
        there: dict[str, Any] = {
            "/redfish/v1": {"Systems": {"@odata.id": "/redfish/v1/Systems"}},
            "/redfish/v1/Systems": {"Members": [{"@odata.id": SYSTEM}]},
            SYSTEM: {
                "Name": "odd",
                "PowerState": self.state,
                "Actions": {"#ComputerSystem.Reset": action if self.action is None else self.action},
            },
        }
        found = there.get(path.rstrip("/"))
        return Reply(404) if found is None else Reply(body=found)

    def post(self, kind: str) -> Reply:
        """The reset action."""
        self.posts.append(kind)
        return self.on_reset(self, kind)


@contextmanager
def served(bmc: OddBmc) -> Iterator[str]:
    """Serve it on loopback; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(bmc.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(bmc.post(body["ResetType"]))

        def _send(self, reply: Reply) -> None:
            if reply.cut:
                self.close_connection = True
                return
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if reply.status != 204 else 0))
            self.end_headers()
            if reply.status != 204:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
