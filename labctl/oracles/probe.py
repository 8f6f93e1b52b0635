"""A question that a script on a node answers: whether one thing is as it has to be, such as a cause being gone."""

from __future__ import annotations

from pydantic import Field

from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_MOST_SAID = 300


class Probe(Oracle):
    """`script` is run as root on `node` and ends with 0 where all is well, with 1 where it is not; the last line
    that it prints says why. Whatever else it ends with, or no end within `within_s`, means that it could not tell.
    """

    label: str = Field(pattern=r"^[a-z][a-z0-9_]{2,40}$")
    node: str
    script: str
    of: Aspect = "cause"
    within_s: float = Field(default=60.0, gt=0)

    @property
    def name(self) -> str:
        return f"{self.label}_{self.node}"

    @property
    def aspect(self) -> Aspect:
        return self.of

    def look(self, lab: Lookout) -> Seen:
        done = lab.sh(self.node, self.script, timeout_s=self.within_s)
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        return {"status": done.status, "said": said[-1][:_MOST_SAID] if said else ""}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        status, said = int(after["status"]), str(after["said"])
        if status == 0:
            return self.found(Outcome.PASS, status=status)
        reason = f"{self.node}: {said or f'status {status}'}"
        return self.found(Outcome.FAIL if status == 1 else Outcome.UNKNOWN, reason, status=status)
