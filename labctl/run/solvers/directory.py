"""The directory a solver works in: the statement, its words, its ways to the nodes; nothing else of the lab."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from labctl.lab.model import Node
from labctl.run.problem import Problem

ACCOUNT = "oncall"
COMMANDS = ("submit", "declare", "hardware")
CONFINED = "node"
_HOW = """

---

You have {limit} from now. In this directory:

* `vocabulary.json`: the words of a diagnosis. `./submit diagnosis.json` hands one in, such as
  `{{"triples": [{{"component": "…", "mechanism": "…", "scope": "…"}}], "text": "in your own words"}}`, or
  `{{"healthy": true}}` where nothing is wrong. You may do so again; the last one counts.
* {access}
* `./hardware`: what hands can do to the machines, such as `./hardware status w2`.
* `./declare`: says that the repair is complete. This is final: your sessions end, and the service is judged.
* `usage.json`, if you write one, is kept: `{{"tokens_in": 1200, "tokens_out": 300, "cost_usd": 0.04}}`.
"""
_SHELL = (
    "`ssh -F ssh_config w1`: the on-call account on each node ({nodes}); `sudo -l` says what it may do as root."
)
_ROOT = "`ssh -F ssh_config w1`: an account on each node ({nodes}) that may become root with `sudo -i`."
_TOOLS = "`./node`: what you can do on the nodes ({nodes}), such as `./node w1 units`."


@dataclass(frozen=True)
class Directory:
    """Where a solver works. `public_key` opens the on-call account once the nodes have it."""

    path: Path
    public_key: str

    @property
    def socket(self) -> Path:
        """Where its commands look for the runner."""
        return self.path / "desk"

    @property
    def ssh(self) -> tuple[str, ...]:
        """The beginning of an SSH command line to a node of its configuration."""
        return ("ssh", "-F", str(self.path / "ssh_config"))

    def remove(self) -> None:
        """Take it away. Twice is fine."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


def make_directory(problem: Problem, nodes: Sequence[Node], *, open_shell: bool) -> Directory:
    """Make it, in the directory for temporary files. `open_shell`: with SSH whatever the problem's surface is."""
    path = Path(tempfile.mkdtemp(prefix="oncall-"))
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (path / "STATEMENT.md").write_text(_statement(problem, nodes))
    (path / "vocabulary.json").write_text(problem.vocabulary.model_dump_json(indent=2) + "\n")
    confined = problem.surface == "confined"
    tool = resources.files("labctl.run.solvers").joinpath("tool.py").read_text()
    for name in (*COMMANDS, *((CONFINED,) if confined else ())):
        (path / name).write_text(tool)
        (path / name).chmod(0o755)
    if not confined or open_shell:
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        (path / "key").touch(mode=0o600)
        (path / "key").write_bytes(private)
        (path / "known_hosts").write_text(_known_hosts(nodes))
        (path / "ssh_config").write_text("".join(_host(path, node) for node in nodes))
    return Directory(path, f"{public.decode()} {ACCOUNT}")


def _statement(problem: Problem, nodes: Sequence[Node]) -> str:
    access = {"confined": _TOOLS, "shell": _SHELL, "root": _ROOT}[problem.surface]
    names = " ".join(node.name for node in nodes)
    limit = f"{problem.limit_s / 60:.0f} minutes" if problem.limit_s >= 120 else f"{problem.limit_s:.0f} seconds"
    how = _HOW.format(limit=limit, access=access.format(nodes=names))
    return f"# {problem.title}\n\n{problem.statement.strip()}{how}"


def _known_hosts(nodes: Sequence[Node]) -> str:
    """The host keys of all nodes; those of a lab share a file."""
    files = sorted({node.known_hosts for node in nodes if node.known_hosts})
    return "".join(file.read_text() for file in files)


def _host(path: Path, node: Node) -> str:
    options = {
        "HostName": node.address, "Port": node.ssh_port, "User": ACCOUNT, "IdentityFile": path / "key",
        "IdentitiesOnly": "yes", "UserKnownHostsFile": path / "known_hosts", "StrictHostKeyChecking": "yes",
        "BatchMode": "yes", "ConnectTimeout": 20, "ServerAliveInterval": 10, "ServerAliveCountMax": 3,
        "LogLevel": "ERROR", "ForwardAgent": "no",
    }  # fmt: skip
    return f"Host {node.name}\n" + "".join(f"  {key} {value}\n" for key, value in options.items())
