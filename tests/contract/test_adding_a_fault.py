"""The fault of docs/adding-a-fault.md, taken from the page, keeps every promise of a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "import disk_faults\ndisk_faults.__path__.append({place!r})\n"


def test_the_fault_of_the_guide_works_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding-a-fault.md").read_text()
    saved_as, code = re.findall(r"Save this as `disk_faults/(\w+)\.py`:\n\n```python\n(.*?)```", page, re.DOTALL)[
        0
    ]
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / f"{saved_as}.py").write_text(code)
    (tmp_path / "guide_plugin.py").write_text(PLUGIN.format(place=str(tmp_path / "faults")))
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "guide_plugin", "-k", saved_as,
         "tests/contract/test_life_of_a_fault.py"),
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 50, done.stdout[-500:]
