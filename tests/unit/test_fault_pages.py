"""docs/faults/ is what the faults give: a page each, found by looking, and nothing that no fault has."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from labctl.cli.parameters import example_lines, parameters_of
from labctl.hardware.catalog import hardware_catalog
from node_agent.catalog import catalog

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate-faults"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    loader = SourceFileLoader("generate_faults", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look for their module there
    loader.exec_module(module)
    return module


def test_the_pages_are_what_the_faults_give() -> None:
    done = subprocess.run((sys.executable, SCRIPT, "--check"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*catalog(), *hardware_catalog()])
def test_a_page_tells_all(name: str) -> None:
    fault: Any = {**catalog(), **hardware_catalog()}[name]
    text = (ROOT / "docs" / "faults" / f"{name}.md").read_text()
    index = (ROOT / "docs" / "faults" / "README.md").read_text()
    assert f"[{name}]({name}.md)" in index
    assert " ".join(fault.operator_sees.split()) in text
    for parameter in parameters_of(fault):
        assert f"| `{parameter.option}` |" in text
    for line in example_lines(fault):
        assert f"`labctl inject {line}`" in text
    for title in ("Parameters", "What it needs", "Backends", "Evidence", "Reversibility"):
        assert f"\n## {title}\n" in text
    assert "\n### " in text and "Taken " in text, "at least one backend"
    assert str(ROOT) not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and all(line.endswith(" |") or set(line) <= set("|-") for line in rows)


def test_backends_come_from_plans(generator: ModuleType) -> None:
    ways = {way.backend: way for way in generator.explored(catalog()["latent_sector_error"])[0]}
    assert set(ways) >= {"dm-snapshot", "dm-dust", "dm-flakey", "dm-error"}
    assert ways["dm-snapshot"].when[1] == () and ways["dm-dust"].when[1] == ("dm.snapshot",)
    assert any("writes of the bad sectors fail too" in text for text in ways["dm-error"].warnings)
    assert generator.without(catalog()["latent_sector_error"], "loop.direct_io") == "refused"


def test_a_stale_page_and_one_too_many_are_found(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generator, "FOLDER", tmp_path / "faults")
    monkeypatch.setattr(sys, "argv", ["generate-faults"])
    assert generator.main() == 0
    (tmp_path / "faults" / "no_such_fault.md").write_text("# gone\n")
    with (tmp_path / "faults" / "file_error.md").open("a") as page:
        page.write("by hand\n")
    (tmp_path / "faults" / "fork_error.md").unlink()
    monkeypatch.setattr(sys, "argv", ["generate-faults", "--check"])
    assert generator.main() == 1
    said = capsys.readouterr().err
    names = {name for name in (*catalog(), "no_such_fault") if f"/{name}.md" in said}
    assert names == {"no_such_fault", "file_error", "fork_error"}
    monkeypatch.setattr(sys, "argv", ["generate-faults"])
    assert generator.main() == 0
    monkeypatch.setattr(sys, "argv", ["generate-faults", "--check"])
    assert generator.main() == 0
