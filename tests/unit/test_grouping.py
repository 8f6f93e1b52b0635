"""Tests of real kernels that share a lab run in one worker."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "vm" / "conftest.py"
PLAIN = "import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_one(n): pass\n"
KERNELS = "import pytest\n@pytest.fixture\ndef kernel_nodes(): pass\n" + PLAIN.replace("(n)", "(n, kernel_nodes)")


def test_a_file_stays_with_one_worker_and_so_do_all_that_want_other_kernels(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    for name, text in (("a", PLAIN), ("b", PLAIN), ("c", KERNELS), ("d", KERNELS)):
        (tmp_path / f"test_{name}.py").write_text(text)
    options = ("-n", "2", "--dist", "loadfile", "-v", "-p", "no:cacheprovider", f"--rootdir={tmp_path}")
    argv = (sys.executable, "-m", "pytest", *options, ".")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    ran = re.findall(r"\[(gw\d)\].* PASSED test_(\w)\.py", done.stdout)
    assert len(ran) == 32, done.stdout + done.stderr
    workers = {file: {worker for worker, name in ran if name == file} for file in "abcd"}
    assert [len(workers[file]) for file in "abcd"] == [1, 1, 1, 1]
    assert workers["c"] == workers["d"]
    assert len({*map(frozenset, workers.values())}) == 2, "both workers have something to do"
