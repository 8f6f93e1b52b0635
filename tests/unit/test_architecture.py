"""The import directions of the design, and what must not be in the project."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("labctl", "node_agent", "ebpf", "disk_faults", "problems")
SOURCES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py") if "_pb2" not in p.name)
MACHINERY = ("ebpf.loader",)  # lives in a fault package, and is none: what host.bpf is made of
FAULT_HOMES = ("node_agent.faults", "disk_faults", "ebpf")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _within(name: str, *packages: str) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def _is_fault(path: Path) -> bool:
    return _within(_module(path), *FAULT_HOMES) and bool(
        re.search(r"^class \w+\([^)]*\bFault\)", path.read_text(), re.M)
    )


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_import_direction(path: Path) -> None:
    me, imports = _module(path), _imports(path)
    if _within(me, "node_agent", "disk_faults", "ebpf"):
        assert not [i for i in imports if _within(i, "labctl", "problems")], (
            "the node never needs the control side"
        )
    if _within(me, "labctl"):
        assert not [i for i in imports if _within(i, *FAULT_HOMES)], "labctl finds faults by the catalogue"
    if _within(me, "node_agent") and not _within(me, "node_agent.faults"):
        faults = [i for i in imports if _within(i, *FAULT_HOMES) and not _within(i, *MACHINERY)]
        assert not faults, "the agent finds faults by the catalogue"
    if _is_fault(path):
        others = {_module(p) for p in SOURCES if p != path and _is_fault(p)}
        assert not [i for i in imports if i in others], "faults never import each other"
    if _within(me, "problems"):
        words = ("labctl.run", "labctl.oracles", "labctl.hardware.faults")
        assert not [i for i in imports if _within(i, "labctl") and not _within(i, *words)]


def test_importing_everything_needs_no_privilege_and_does_nothing() -> None:
    modules = [_module(p) for p in SOURCES if p.name != "__main__.py"]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_files_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 62, f"{node.name} is long"


def test_no_shell_strings() -> None:
    strings = re.compile(r"\bshell\s*=\s*True|os\.system\(|os\.popen\(")
    offenders = [str(p) for p in SOURCES if strings.search(p.read_text())]
    assert offenders == []


def test_no_package_registry_is_named() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    hosts = re.compile("|".join((r"deb\.debian" + r"\.org", r"pypi" + r"\.org", r"pythonhosted" + r"\.org")))
    named = [
        n
        for n in tracked.splitlines()
        if (ROOT / n).is_file() and hosts.search((ROOT / n).read_text("utf8", "replace"))
    ]
    assert named == []
