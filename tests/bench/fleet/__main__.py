"""`make bench-fleet`: labctl and 1,000 agents on this machine; JSON on standard output.

The agents are real: gRPC with mutual TLS, the service and the injector with its journal, over a simulated kernel.
Times are wall clock of a labctl process from start to end, so they hold starting Python, reading the lab and
printing. The agents run on the same processors: what they cost is in the times, too.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.bench.fleet.fleet import Fleet, Run, fleet

MOST_S, MOST_MIB = 5.0, 300.0
SILENT, LATE, LIARS = 0.05, 0.05, 0.01


def sick(names: Sequence[str]) -> dict[str, str]:
    """Who is silent, late or a liar: the same in every run."""
    silent, late, liars = (max(1, round(len(names) * share)) for share in (SILENT, LATE, LIARS))
    drawn = random.Random(1).sample(list(names), silent + late + liars)
    return {
        name: "silent" if number < silent else "late" if number < silent + late else "liar"
        for number, name in enumerate(drawn)
    }


class Bench:
    """The runs, one after the other; each checks that it did what it was to do."""

    def __init__(self, under: Fleet, fault: Sequence[str], within_s: float) -> None:
        self.fleet, self.fault, self.within_s = under, fault, within_s
        self.sick = sick(under.names)

    def inject(self, *argv: str) -> tuple[str, Run]:
        """Plant on all."""
        run = self.fleet.labctl("inject", *self.fault, "--node", "all", *argv)
        return run.data.get("id", ""), run

    def of(self, *moods: str) -> set[str]:
        """The nodes in these moods."""
        return {name for name, mood in self.sick.items() if mood in moods}

    def healthy(self, rounds: int) -> dict[str, Any]:
        """Everybody well: inject to all, recover from all."""
        injects, recovers = [], []
        for _ in range(rounds):
            name, run = self.inject()
            expect(run, 0)
            assert len(self.fleet.live()) == len(self.fleet.names), "the fault is not everywhere"
            injects.append(run)
            run = self.fleet.labctl("recover", name)
            expect(run, 0)
            assert self.fleet.live() == {}, "the fault is still somewhere"
            recovers.append(run)
        return {"inject": several(injects), "recover": several(recovers)}

    def late_in_time(self, late_s: float) -> dict[str, Any]:
        """Some answer late, but within the time they have."""
        late = dict.fromkeys(self.of("late"), "late")
        self.fleet.moods(late, ["Plan", "Apply", "Recover"], late_s)
        name, planted = self.inject("--within", f"{self.within_s:g}s")
        expect(planted, 0)
        recovered = self.fleet.labctl("recover", name, "--within", f"{self.within_s:g}s")
        expect(recovered, 0)
        self.fleet.moods({}, [])
        return {"late": len(late), "late_s": late_s, "inject": planted.cost(), "recover": recovered.cost()}

    def silent_from_the_start(self) -> dict[str, Any]:
        """Half of the silent ones accept a connection and say nothing, the others answer no request."""
        silent = sorted(self.of("silent"))
        deaf = silent[: len(silent) // 2]
        self.fleet.make_lab(deaf)
        self.fleet.moods(dict.fromkeys(silent, "silent"), ["List", "Plan"])
        _, run = self.inject("--within", f"{self.within_s:g}s")
        expect(run, 70)
        self.fleet.moods({}, [])
        self.fleet.make_lab()
        return {"silent": len(silent), "inject": run.cost(), "named": named(run.data["nodes"], silent),
                "live_afterwards": len(self.fleet.live()), "said": run.data["error"]}  # fmt: skip

    def sick_while_planting(self) -> dict[str, Any]:
        """All plan well; at planting some are silent, late beyond their time, or answer for another node."""
        self.fleet.moods(self.sick, ["Apply"], 2 * self.within_s)
        _, run = self.inject("--within", f"{self.within_s:g}s")
        expect(run, 70, 75)
        taken_back = named(run.data["nodes"], self.of("silent", "late", "liar"))
        time.sleep(2 * self.within_s)  # until the requests of the late ones have arrived as well
        left = self.fleet.live()
        self.fleet.moods({}, [])
        again = self.fleet.labctl("recover", "--all", "--within", f"{self.within_s:g}s")
        expect(again, 0)
        return {"sick": len(self.sick), "inject": run.cost(), "named": taken_back,
                "live_afterwards": len(left), "recover": again.cost(), "said": run.data["error"]}  # fmt: skip

    def sick_while_recovering(self) -> dict[str, Any]:
        """Some are silent, late, or say that they have recovered what they have not touched."""
        name, planted = self.inject()
        expect(planted, 0)
        self.fleet.moods(self.sick, ["Recover"], 2 * self.within_s)
        run = self.fleet.labctl("recover", name, "--within", f"{self.within_s:g}s")
        expect(run, 75)
        found = named(run.data["unreachable"], self.of("silent", "late", "liar"))
        self.fleet.moods({}, [])
        again = self.fleet.labctl("recover", name)
        expect(again, 0)
        return {"sick": len(self.sick), "recover": run.cost(), "named": found, "again": again.cost(),
                "live_afterwards": len(self.fleet.live())}  # fmt: skip


def expect(run: Run, *codes: int) -> None:
    """The exit status must be one of these."""
    if run.code not in codes:
        raise RuntimeError(f"labctl ended with {run.code}: {str(run.data)[:2000]} {run.error[-500:]}")


def several(runs: Sequence[Run]) -> dict[str, Any]:
    """Median and worst of each cost."""
    return {
        key: {"median": round(statistics.median(values), 2), "worst": max(values)}
        for key in ("wall_s", "cpu_s", "agents_cpu_s", "rss_mib")
        for values in [[run.cost()[key] for run in runs]]
    }


def named(told: Any, wanted: Sequence[str] | set[str]) -> dict[str, Any]:
    """Whether exactly the right nodes were named."""
    missed, wrong = sorted(set(wanted) - set(told)), sorted(set(told) - set(wanted))
    return {"right": len(set(wanted) & set(told)), "missed": missed, "wrong": wrong}


def verdict(result: dict[str, Any]) -> dict[str, Any]:
    """What was to be reached, and whether it was."""
    well = result["healthy"]
    named_all = all(
        not part["named"]["missed"] for part in result.values() if isinstance(part, dict) and "named" in part
    )
    return {
        "inject_within_5_s": well["inject"]["wall_s"]["median"] <= MOST_S,
        "recover_within_5_s": well["recover"]["wall_s"]["median"] <= MOST_S,
        "memory_within_300_mib": max(well[w]["rss_mib"]["worst"] for w in ("inject", "recover")) <= MOST_MIB,
        "every_late_or_lost_node_named": named_all,
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument(
        "--processes", type=int, default=psutil.cpu_count(), help="processes that the agents are spread over"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--within", type=float, default=2.0, help="seconds a node has when some are sick")
    parser.add_argument("--fault", nargs="+", default=["disk_slow"], help="fault and its options")
    parser.add_argument("--only-healthy", action="store_true")
    parser.add_argument("--json", type=Path, help="also write it there")
    given = parser.parse_args()
    with fleet(given.nodes, given.processes) as under:
        bench = Bench(under, given.fault, given.within)
        expect(under.labctl("limits", "--quorum", "off", "--faults-per-node", "none"), 0)
        result: dict[str, Any] = {
            "machine": {"processors": psutil.cpu_count(), "load": psutil.getloadavg()[0],
                        "python": platform.python_version(), "kernel": platform.release()},
            "nodes": given.nodes, "fault": given.fault, "within_s": given.within,
            "healthy": bench.healthy(given.rounds),
        }  # fmt: skip
        if not given.only_healthy:
            result["late_in_time"] = bench.late_in_time(given.within / 2)
            result["silent_from_the_start"] = bench.silent_from_the_start()
            result["sick_while_planting"] = bench.sick_while_planting()
            result["sick_while_recovering"] = bench.sick_while_recovering()
            result["reached"] = verdict(result)
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
