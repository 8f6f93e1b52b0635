"""Compiles the BPF objects into the wheel: a node needs no compiler.

One object for each `ebpf/NAME.bpf.c`, at `ebpf/objects/NAME.bpf.o`. They fit any kernel (CO-RE) and any machine
with the same byte order; the target architecture only decides how system call arguments are read.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def compile_objects(root: Path, target: Path) -> tuple[Path, ...]:
    """Compile every program of `root`/ebpf into `target`. Raises RuntimeError with the compiler's words."""
    clang = shutil.which("clang")
    if clang is None:
        raise RuntimeError("clang is needed to compile ebpf/*.bpf.c: install clang and libbpf-dev (make setup)")
    made = []
    for source in sorted((root / "ebpf").glob("*.bpf.c")):
        output = target / source.with_suffix(".o").name
        flags = ("-g", "-O2", "-mcpu=v3", "-target", "bpf", "-D__TARGET_ARCH_x86", "-Wall", "-Werror",
                 f"-ffile-prefix-map={root}=.", "-I", str(source.parent))  # fmt: skip
        argv = (clang, *flags, "-c", str(source), "-o", str(output))
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")
        made.append(output)
    return tuple(made)


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds compiled objects and the Vagrantfile to a wheel; an editable install runs here and needs none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        self._scratch = tempfile.TemporaryDirectory()
        for made in compile_objects(Path(self.root), Path(self._scratch.name)):
            build_data["force_include"][str(made)] = f"ebpf/objects/{made.name}"
        vagrantfile = Path(self.root) / "vagrant" / "Vagrantfile"
        if vagrantfile.is_file():  # not in the tree that an agent's bundle is built from
            build_data["force_include"][str(vagrantfile)] = "labctl/lab/Vagrantfile"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()
