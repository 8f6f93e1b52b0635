"""Helper processes: real ones of this machine. They need no root where there is no control group to make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node_agent.errors import ApplyError, ConflictError
from node_agent.host import HelperFailed
from node_agent.host.helpers import HelperProcesses
from node_agent.host.real import RealHost
from node_agent.steps import load_step
from node_agent.steps.helper_process import Claim, HelperProcess
from tests.contract.simulated import SimulatedHost, fresh_kernel

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('to', line, end='', flush=True)"
LEAVES_CHILDREN = "import subprocess, sys\nsubprocess.Popen(['/bin/sleep', '1000'])\n" + ANSWERS
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ANSWERS
COMPLAINS = "import sys\nprint('first', file=sys.stderr)\nprint('the reason', file=sys.stderr)\nsys.exit(1)"


def step(code: str, part: str = "test", **more: object) -> HelperProcess:
    name = f"groundfault-unit-{os.getpid()}-{part}"
    return HelperProcess.model_validate({"name": name, "argv": (sys.executable, "-I", "-c", code), **more})


def until(what: str, true: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealHost]:
    if os.geteuid() != 0:  # marks in the environment alone
        monkeypatch.setattr("node_agent.host.helpers._group", lambda name: None)
    host = RealHost()
    yield host
    for part in ("test", "other"):
        host.helpers.stop(step("", part).name)


def running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_helper_from_start_to_gone(host: RealHost) -> None:
    one = step("input()\n" + ANSWERS, payload="payload")
    undo = one.capture(host)
    one.apply(host)
    (pid,) = host.helpers.pids(one.name)
    assert os.getsid(pid) == pid != os.getsid(0), "a session of its own"
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "0"
    assert f"GROUNDFAULT_TAG={one.name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert host.helpers.ask(one.name, "counters") == "to counters"
    assert one.leftovers(host, undo)
    one.revert(host, undo)
    assert not running(pid) and one.leftovers(host, undo) == () and host.helpers.pids(one.name) == []
    one.revert(host, None)


def test_the_payload_is_its_first_line(host: RealHost) -> None:
    code = "import sys\nfirst = len(sys.stdin.readline())\nprint('ready', flush=True)\n"
    code += "for line in sys.stdin: print(first, flush=True)"
    one = step(code, payload="x" * 500_000)
    one.apply(host)
    assert host.helpers.ask(one.name, "") == "500001"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_it_has_a_control_group_of_its_own(host: RealHost) -> None:
    one = step(LEAVES_CHILDREN)
    one.apply(host)
    pids = host.helpers.pids(one.name)
    assert len(pids) == 2
    groups = {Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1] for pid in pids}
    assert groups == {f"0::/{one.name}"}
    one.revert(host, {})
    assert not any(running(pid) for pid in pids)
    assert not any(one.name in path for path in host.glob(f"/sys/fs/cgroup/**/*{one.name}*"))


def test_what_it_started_goes_with_it_even_when_it_has_ended_itself(host: RealHost) -> None:
    one = step(LEAVES_CHILDREN)
    one.apply(host)
    first, second = sorted(host.helpers.pids(one.name), key=lambda pid: os.getsid(pid) != pid)
    os.kill(min(first, second), signal.SIGKILL)
    until("the helper is dead", lambda: len(host.helpers.pids(one.name)) == 1)
    with pytest.raises(ProcessLookupError):
        host.helpers.ask(one.name, "counters")
    assert one.leftovers(host, {})
    one.revert(host, {})
    assert not running(first) and not running(second) and one.leftovers(host, {}) == ()


def test_a_stubborn_one_is_killed(host: RealHost) -> None:
    one = step(STUBBORN)
    one.apply(host)
    (pid,) = host.helpers.pids(one.name)
    one.revert(host, {})
    assert not running(pid)


def test_one_that_fails_gives_its_reason(host: RealHost) -> None:
    with pytest.raises(ApplyError) as failed:
        step(COMPLAINS).apply(host)
    assert failed.value.message == "first\nthe reason"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11: no message"),
        ("print('no such word'); import time; time.sleep(60)", "was not ready in time: 0.5 s"),
    ],
)
def test_one_that_never_is_ready(host: RealHost, code: str, words: str) -> None:
    one = step(code, ready_s=0.5 if "sleep" in code else 10)
    with pytest.raises(ApplyError, match=words):
        one.apply(host)
    one.revert(host, {})
    assert one.leftovers(host, {}) == ()


def test_no_such_program(host: RealHost) -> None:
    one = step("").model_copy(update={"argv": ("/no/such/program",)})
    with pytest.raises(ApplyError, match="/no/such/program: No such file or directory"):
        one.apply(host)


def test_one_that_does_not_answer_in_time(host: RealHost) -> None:
    one = step("import sys\nprint('ready', flush=True)\nsys.stdin.read()")
    one.apply(host)
    with pytest.raises(TimeoutError):
        host.helpers.ask(one.name, "counters", timeout_s=0.1)


def test_a_name_that_is_taken(host: RealHost) -> None:
    one = step(ANSWERS)
    one.apply(host)
    with pytest.raises(ConflictError, match="already"):
        one.capture(host)


def test_it_outlives_the_thread_that_asked_for_it(host: RealHost) -> None:
    one = step(ANSWERS)
    asker = threading.Thread(target=one.apply, args=(host,))
    asker.start()
    asker.join()
    assert not asker.is_alive() and host.helpers.ask(one.name, "still there") == "to still there"


@pytest.mark.parametrize("code", [ANSWERS, STUBBORN])
def test_it_dies_with_the_agent(host: RealHost, code: str) -> None:
    """An agent of its own gets SIGKILL; another one then removes what is left."""
    one = step(code, "other")
    script = (
        "import sys\nfrom node_agent.host.real import RealHost\nimport node_agent.host.helpers as h\n"
        + ("h._group = lambda name: None\n" if os.geteuid() else "")
        + "from node_agent.steps import load_step\nimport json\n"
        "load_step(json.loads(sys.argv[1])).apply(RealHost())\nprint('started', flush=True)\nsys.stdin.read()"
    )
    agent = subprocess.Popen(
        (sys.executable, "-c", script, one.model_dump_json()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=ROOT, text=True,
    )  # fmt: skip
    assert agent.stdout is not None and agent.stdout.readline() == "started\n"
    (pid,) = host.helpers.pids(one.name)
    agent.kill()
    until("the helper is dead", lambda: not running(pid), 1.0)
    agent.communicate()
    one.revert(host, {})
    assert one.leftovers(host, {}) == ()


def test_no_helper_starts_for_an_agent_that_is_gone() -> None:
    launcher = ROOT / "node_agent" / "launcher.py"
    done = subprocess.run(
        (sys.executable, "-I", "-S", launcher, "", "1", "/bin/echo", "hello"), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (127, "")


def test_the_step_is_data() -> None:
    one = step(ANSWERS, claims=(Claim(kind="bpf", name="x"),), payload="p")
    assert load_step(one.model_dump(mode="json")) == one
    assert [str(r) for r in one.resources()] == [f"cgroup {one.name}", "bpf x"]


def test_the_simulated_one_fails_alike() -> None:
    kernel = fresh_kernel()
    kernel.helper_refuses = "no"
    host = SimulatedHost(kernel)
    with pytest.raises(ApplyError, match=r"^no$"):
        step(ANSWERS).apply(host)
    assert step(ANSWERS).leftovers(host, {})
    step(ANSWERS).revert(host, {})
    assert step(ANSWERS).leftovers(host, {}) == ()
    assert str(HelperFailed("/bin/x", None, "3 s")) == "/bin/x was not ready in time: 3 s"
    assert HelperProcesses().complaint("nobody") == ""
