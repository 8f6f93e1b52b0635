"""A researcher's own source by BCC, as a user types it, on a node that has it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.lab.model import LabOptions
from tests.lab import LabUnderTest, lab_up, ssh, state_home
from tests.user import labctl

pytestmark = [pytest.mark.vm, pytest.mark.thorough, pytest.mark.timeout(1500)]

PROGRAMS = Path(__file__).with_name("programs")
BCC_PACKAGES = ("python3-bpfcc", "linux-headers-cloud-amd64")
LAB = "bcc"


@pytest.fixture(scope="module")
def bcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    """A node with BCC and kernel headers. XDG_STATE_HOME is its own as long as it is up."""
    home = tmp_path_factory.mktemp("state-bcc")
    with state_home(home), lab_up(LAB, LabOptions(nodes=1, memory_mib=1024, packages=BCC_PACKAGES)) as up:
        yield up
    shutil.rmtree(home, ignore_errors=True)


def sh(lab: LabUnderTest, script: str, check: bool = True) -> str:
    return ssh(lab.nodes[0], script, check=check).stdout.strip()


def inject(source: Path, *options: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    return labctl("--lab", LAB, "inject", "bpf_program", "--node", "w1", "--source", str(source), *options,
                  status=status)  # fmt: skip


def evidence(injection: str) -> Any:
    found = json.loads(labctl("--lab", LAB, "injections", "--json").stdout)["injections"]
    return next(one["evidence"] for one in found if one["id"] == injection)


def recovered() -> None:
    labctl("--lab", LAB, "recover", "--all")
    assert json.loads(labctl("--lab", LAB, "node", "residue", "w1", "--json").stdout)["entries"] == []


def test_a_source_of_ones_own_bites_and_goes(bcc: LabUnderTest) -> None:
    sh(bcc, "cp /bin/cat /run/victim")
    before = sh(bcc, "bpftool link list | wc -l; /run/victim /etc/hostname")
    planted = inject(PROGRAMS / "deny_open.c", "--id", "mine")
    assert "backend        bcc" in planted.stdout
    assert (
        sh(bcc, "if /run/victim /etc/hostname >/dev/null 2>&1; then echo well; else echo denied; fi") == "denied"
    )
    assert sh(bcc, "cat /etc/hostname"), "another command is well"
    found = evidence("mine")
    assert found["armed"] and found["hits"] > 0 and found["counters"]["seen"] > found["hits"]
    assert found["counters"]["programs"] >= 1
    recovered()
    assert sh(bcc, "bpftool link list | wc -l; /run/victim /etc/hostname") == before
    assert sh(bcc, "ls -d /sys/fs/cgroup/groundfault-* 2>/dev/null", check=False) == ""


def test_hits_agree_with_what_the_victim_saw(bcc: LabUnderTest) -> None:
    counting = PROGRAMS / "count_others.c"
    pid = sh(bcc, "sleep 1000 > /dev/null 2>&1 & echo $!")
    inject(counting, "--id", "counts", "--pid", pid, "--attach", "kprobe:do_nanosleep=count_others")
    before = evidence("counts")["hits"]
    sh(bcc, "for i in 1 2 3 4 5 6 7; do sleep 0.01; done")
    after = evidence("counts")["hits"]
    assert 7 <= after - before < 100
    recovered()


def test_an_agent_that_is_killed_takes_bcc_with_it(bcc: LabUnderTest) -> None:
    inject(PROGRAMS / "deny_open.c", "--id", "killed")
    took = sh(
        bcc,
        "main=$(systemctl show -P MainPID groundfault-agent); helper=$(cat /sys/fs/cgroup/*killed*/cgroup.procs);"
        "kill -KILL $main; began=$(date +%s%N);"
        "while [ -e /proc/$helper ]; do :; done; echo $((($(date +%s%N) - began) / 1000000))",
    )
    assert int(took) < 1000, f"the helper lived for {took} ms"
    assert sh(bcc, "/run/victim /etc/hostname")
    bcc.ready(bcc.nodes[0])
    recovered()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("BPF_ARRAY(hits, u64, 1);\nint kprobe__vfs_read(void *c) { return nowhere; }",
         "does not compile: line 2:40: error: use of undeclared identifier 'nowhere'"),
        ("BPF_ARRAY(hits, u64, 1);\n"
         "int kprobe__vfs_read(void *c) { int z = 0; u64 *v = hits.lookup(&z); return *v; }",
         "R0 invalid mem access 'map_value_or_null'"),
        ("int kprobe__vfs_read(void *c) { return 0; }", "no map called hits"),
        ("BPF_ARRAY(hits, u64, 1);\nint count(void *c) { return 0; }", "nothing of the program was attached"),
        ("BPF_HASH(hits, u64, u64);\nBPF_PERF_OUTPUT(x);\nint kprobe__no_such_fn(void *c) { return 0; }",
         "no_such_fn"),
    ],
    ids=("compiler", "verifier", "no counters", "nowhere", "no such function"),
)  # fmt: skip
def test_refusals_say_why(bcc: LabUnderTest, tmp_path: Path, code: str, words: str) -> None:
    source = tmp_path / "mine.c"
    source.write_text(code)
    refused = inject(source, status=None)
    assert refused.returncode not in (0, 75) and words in refused.stderr and "undone" in refused.stderr
    if "verifier" in refused.stderr:
        assert sh(bcc, "uname -r") in refused.stderr
    recovered()
