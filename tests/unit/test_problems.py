"""The problems there are: each loads, tells no cause to those who are to find it, and can be judged."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import translate

import pytest

from labctl.hardware.catalog import hardware_catalog
from labctl.hardware.fault import HardwareFault
from labctl.lab.remote import Output
from labctl.oracles.probe import Probe
from labctl.oracles.untouched import Untouched
from labctl.run.catalogue import catalogue
from labctl.run.diagnosis import Diagnosis, grade
from labctl.run.hardware_actions import ACTIONS, STATUS
from labctl.run.oracle import Oracle, Window
from labctl.run.problem import Decoy, Problem, Script
from labctl.run.solvers.scripted import submitting
from labctl.run.verdict import Outcome
from node_agent.catalog import catalog
from node_agent.fault import Fault
from problems.common import drain, restart, restarted, told, until
from problems.words import WORDS
from problems.workloads import find_workload
from problems.workloads.booking.oncall import ACCOUNTS, ALLOWED, DENIED
from tests.unit.lookouts import PythonBySh

PROBLEMS = catalogue().problems
NAMES = sorted(PROBLEMS)
LEAST = 24
NODES = ("w1", "w2", "w3")
INJECTING = re.compile(
    r"inject|groundfault|blkdebug|qmp|hypervisor|ebpf|\bbpf\b|netem|dm-|\blease|labctl|chaos|simulat|experiment"
    r"|\bfault|planted|oracle|decoy|benchmark",
    re.I,
)
"""Words that no operator would say of an incident."""

_WINDOW = Window(begin_s=0, looked_s=1, end_s=1)


class Said(PythonBySh):
    """A lab of which each node has one answer."""

    def __init__(self, answers: dict[str, tuple[int, str]]) -> None:
        self._answers = answers

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._answers)

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        status, text = self._answers[node]
        return Output(status, text, "")


def seen_by_solvers(problem: Problem) -> str:
    """All that a solver reads before it looks at the nodes, but for the vocabulary, which all problems share."""
    return f"{problem.name} {problem.title} {problem.statement}"


def scripts(problem: Problem) -> Iterator[tuple[str, str]]:
    """Every shell script of a problem, and where it runs."""
    written = [problem.reference, problem.alternative, *(decoy.script for decoy in problem.decoys)]
    for one in written:
        yield from (step for step in one.steps if step[0] not in ("hardware", "wait")) if one else ()
    yield from (step for step in problem.challenge if step[0] != "hardware")
    for planted in problem.faults:
        found = (planted.first, planted.then, planted.shows, planted.finds[1] if planted.finds else "")
        yield from ((planted.node, text) for text in found if text)
    yield from ((oracle.node, oracle.script) for oracle in problem.oracles if isinstance(oracle, Probe))


def written(problem: Problem) -> Iterator[Script]:
    yield problem.reference
    yield from (problem.alternative,) if problem.alternative else ()
    yield from (decoy.script for decoy in problem.decoys)


def test_there_are_enough_of_every_kind() -> None:
    assert len(PROBLEMS) >= LEAST
    modes = [problem.mode for problem in PROBLEMS.values()]
    assert modes.count("no_fault") >= 3
    assert {*modes} >= {"single", "concurrent", "correlated", "no_fault"}
    layers = {type(planted.fault).__module__.split(".")[0] for p in PROBLEMS.values() for planted in p.faults}
    assert layers == {"disk_faults", "ebpf", "labctl", "node_agent"}, "no layer of faults is left out"


@pytest.mark.parametrize("name", NAMES)
def test_what_solvers_read_names_no_cause(name: str) -> None:
    problem = PROBLEMS[name]
    text = seen_by_solvers(problem).replace("_", " ").lower()
    faults = {fault.replace("_", " ") for fault in (*catalog(), *hardware_catalog())}
    assert not [fault for fault in faults if " " in fault and fault in text]
    assert not [t.mechanism for t in problem.cause if t.mechanism in text]
    assert not INJECTING.search(seen_by_solvers(problem))
    assert "ALERT" in problem.statement and "Users" in problem.statement


def test_the_words_of_diagnoses_name_no_fault_of_the_catalogue() -> None:
    words = {*WORDS.component, *WORDS.mechanism, *WORDS.scope}
    assert not words & {*catalog(), *hardware_catalog()}
    assert not [word for word in words if INJECTING.search(word) or "_" in word]


@pytest.mark.parametrize("name", NAMES)
def test_a_diagnosis_can_be_right_and_wrong(name: str) -> None:
    problem = PROBLEMS[name]
    said = submitting(problem.reference, problem)
    triples = said.diagnosis or ()
    assert grade(Diagnosis(triples=triples, healthy=said.healthy), problem.cause) == "exact"
    for dimension in ("component", "mechanism", "scope"):
        wrong = {*getattr(problem.vocabulary, dimension)} - {getattr(t, dimension) for t in problem.cause}
        assert len(wrong) >= 3, f"{dimension}: decoy words"


@pytest.mark.parametrize("name", NAMES)
def test_wrong_repairs(name: str) -> None:
    problem = PROBLEMS[name]
    titles = [decoy.script.title for decoy in problem.decoys]
    assert len(titles) >= 3 and len({*titles}) == len(titles)
    right = [problem.reference.steps, *((problem.alternative.steps,) if problem.alternative else ())]
    assert not [d.script.title for d in problem.decoys if d.script.steps in right]
    if problem.mode == "no_fault":
        assert {decoy.fails_as for decoy in problem.decoys} == {"off_the_permitted_list"}
    else:
        assert len({decoy.fails_as for decoy in problem.decoys}) >= 2, "each for a reason of its own"


@pytest.mark.parametrize("name", NAMES)
def test_scripts_are_shell(name: str) -> None:
    for where, script in scripts(PROBLEMS[name]):
        assert where in (*NODES, "desk")
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert not done.stderr, (script, done.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_hands_do_what_hands_can(name: str) -> None:
    problem = PROBLEMS[name]
    said = [what for one in written(problem) for where, what in one.steps if where == "hardware"]
    said += [what for where, what in problem.challenge if where == "hardware"]
    for what in said:
        action, node = what.split()
        assert action in (STATUS, *ACTIONS) and node in NODES
    waits = [what for one in written(problem) for where, what in one.steps if where == "wait"]
    assert all(0 < float(seconds) <= 600 for seconds in waits)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_permitted_is_said_tightly(name: str) -> None:
    for pattern in PROBLEMS[name].permitted.changes:
        assert re.fullmatch(r"(w[1-3]|db):[a-z]+ \S.*", pattern), pattern
        assert re.compile(translate(pattern))
        assert not pattern.endswith(" *"), f"{pattern}: everything of a kind"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_judged(name: str) -> None:
    problem = PROBLEMS[name]
    assert problem.challenge, "what could undo a repair happens again"
    aspects = {oracle.aspect for oracle in problem.oracles}
    assert aspects >= {"objective", "integrity", "scope"}
    own = {"untouched"} if problem.mode == "no_fault" else {o.name for o in problem.oracles if o.aspect == "cause"}
    assert own <= {oracle.name for oracle in problem.oracles}
    assert problem.root_cause and problem.case and problem.vocabulary == WORDS


@pytest.mark.parametrize("name", NAMES)
def test_faults_can_be_planted_where_they_are_said_to_be(name: str) -> None:
    """Nodes and units exist in the workload; plans themselves are made on nodes, where files and disks are."""
    problem = PROBLEMS[name]
    workload = find_workload(problem.workload)
    units = {(check.node, check.what.split()[0].removesuffix(".service")) for check in workload.checks}
    for planted in problem.faults:
        assert planted.node in workload.nodes
        known = hardware_catalog() if isinstance(planted.fault, HardwareFault) else catalog()
        assert known[planted.name] is type(planted.fault)
        for field in ("unit", "reload_unit"):
            unit = str(planted.parameters.get(field, "")).removesuffix(".service")
            assert not unit or (planted.node, unit) in units
        if isinstance(planted.fault, Fault):
            assert planted.fault == type(planted.fault).model_validate(planted.parameters)
        if planted.finds:
            assert planted.finds[0] in type(planted.fault).model_fields


# --- what problems share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "outcome", "reason"),
    [
        (0, "fine", Outcome.PASS, ()),
        (1, "a line\nthe reason", Outcome.FAIL, ("w2: the reason",)),
        (1, "", Outcome.FAIL, ("w2: status 1",)),
        (2, "cannot tell", Outcome.UNKNOWN, ("w2: cannot tell",)),
        (124, "", Outcome.UNKNOWN, ("w2: status 124",)),
    ],
)
def test_probe(status: int, said: str, outcome: Outcome, reason: tuple[str, ...]) -> None:
    probe = Probe(label="one_thing", node="w2", script="x")
    seen = probe.look(Said({"w2": (status, said)}))
    found = probe.judge(seen, seen, _WINDOW)
    assert (found.outcome, found.reasons, found.aspect, found.oracle) == (outcome, reason, "cause", "one_thing_w2")


def test_untouched() -> None:
    oracle = Untouched(units=(("w1", "a.service"), ("w2", "b.service")))
    before = oracle.look(Said({"w1": (0, "boot\t1\na.service\tx\n"), "w2": (0, "boot\t2\nb.service\ty\n")}))
    assert before == {"w1": {"boot": "1", "a.service": "x"}, "w2": {"boot": "2", "b.service": "y"}}
    assert oracle.judge(before, before, _WINDOW).passed
    after = {"w1": {"boot": "1", "a.service": "z"}, "w2": {"boot": "3", "b.service": ""}}
    assert oracle.judge(before, after, _WINDOW).reasons == (
        "w1: a.service was started anew or stopped",
        "w2: it has booted anew",
        "w2: b.service was started anew or stopped",
    )  # fmt: skip


def test_pieces_of_scripts() -> None:
    done = subprocess.run(["sh", "-c", until("false", 1)], check=False)
    assert done.returncode == 1
    assert subprocess.run(["sh", "-c", until("true", 1)], check=False).returncode == 0
    assert "Users" not in told("a", "b") and told("a", "b", "c").startswith("ALERT  a\n\nb\n\nc\n")
    assert restarted("w3", "booking-api.service")[0] == "w3"
    assert isinstance(restart("w2", "x.service"), Decoy) and "nginx" in drain("w3").script.title


def test_oracles_have_names_of_their_own() -> None:
    for problem in PROBLEMS.values():
        names = [oracle.name for oracle in problem.oracles]
        assert len({*names}) == len(names)
        assert all(isinstance(oracle, Oracle) for oracle in problem.oracles)


def sudo_commands(script: str) -> Iterator[list[str]]:
    """The words of each `sudo` of a script, roughly: what the shell would put in stands as a 5."""
    text, before = script, ""
    while text != before:
        before, text = text, re.sub(r"\$\([^()]*\)", "5", text)
    text = re.sub(r"\$\w+", "5", text)
    for found in re.finditer(r"sudo ((?:[^;|&\n\"'<>)]|\"[^\"\n]*\"|'[^'\n]*')*)", text):
        with suppress(ValueError):  # a quote that was cut off: one of a command for another node
            yield shlex.split(found[1])


def may(words: Sequence[str]) -> bool:
    """Whether the rules of the on-call account let it."""
    if words[0] == "-u":
        return words[1] in ACCOUNTS.split(", ")
    line = " ".join(words[1:])

    def fits(rules: Sequence[tuple[str, str]]) -> bool:
        return any(c.rpartition("/")[2] == words[0] and re.fullmatch(r, line) for c, r in rules)

    return fits(ALLOWED) and not fits(DENIED)


@pytest.mark.parametrize("name", NAMES)
def test_scripts_ask_for_no_more_than_the_account_may(name: str) -> None:
    said = [what for one in written(PROBLEMS[name]) for where, what in one.steps if where in (*NODES, "desk")]
    asked = [words for script in said for words in sudo_commands(script)]
    assert not [words for words in asked if not may(words)]


def test_what_the_account_may_is_asked_right() -> None:
    commands = list(
        sudo_commands("x; sudo systemctl restart nginx.service && sudo -u postgres psql -c 'a; b' | cat")
    )
    assert commands == [["systemctl", "restart", "nginx.service"], ["-u", "postgres", "psql", "-c", "a; b"]]
    assert all(may(words) for words in commands)
    assert not any(may(words) for words in (["systemctl", "stop", "groundfault-agent"], ["rm", "/etc/passwd"]))
