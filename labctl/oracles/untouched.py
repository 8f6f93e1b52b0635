"""Whether nobody has touched services that needed no touch: for problems in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.oracles.nodes import on_each, run
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_ASK = (
    "printf 'boot\\t%s\\n' \"$(cat /proc/sys/kernel/random/boot_id)\"\n"
    "for unit in {units}; do\n"
    '  printf \'%s\\t%s\\n\' "$unit" "$(systemctl show -P InvocationID -- "$unit")"\n'
    "done\n"
)


class Untouched(Oracle):
    """Each of `units` (node, unit) runs as it did at the gate, by its invocation, and no node has booted anew."""

    units: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return "untouched"

    @property
    def aspect(self) -> Aspect:
        return "scope"

    def look(self, lab: Lookout) -> Seen:
        return on_each(lab.nodes, lambda node: self._look(lab, node))

    def _look(self, lab: Lookout, node: str) -> Mapping[str, str]:
        mine = " ".join(unit for where, unit in self.units if where == node)
        said = run(lab, node, _ASK.format(units=mine))
        return dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        changed = [
            f"{node}: {'it has booted anew' if item == 'boot' else f'{item} was started anew or stopped'}"
            for node in sorted(before)
            for item in before[node]
            if before[node][item] != after.get(node, {}).get(item)
        ]
        return self.found(Outcome.FAIL if changed else Outcome.PASS, *changed)
