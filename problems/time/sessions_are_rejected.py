"""Half of all requests are rejected: the clock of w3 is minutes behind.

A token that w1 signed is not yet valid on w3, and one that w3 signed has expired on w1. Both instances are
right by their own clocks; restarting them, or giving tokens a longer life, changes nothing.
"""

from __future__ import annotations

from labctl.oracles.clocks import Clocks
from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.machine.clock_jump import ClockJump
from problems.common import API, decoy, drain, edited, judged, permits, restart, restarted, told, wait
from problems.words import WORDS, triple

CAUSE = triple("clock of w3", "shows an earlier time", "one node")
PERMITTED = permits()
SET = """
last=; now=; i=0
while [ -z "$last" ] || [ "$now" = "$last" ]; do
  i=$((i+1)); [ $i -lt 100 ] || exit 1
  last=$now
  now=$(curl -sSI -m 5 http://10.77.0.1/ | sed -n 's/^Date: *//Ip' | tr -d '\\r')
done
here=$(date +%s.%N)
sudo date -s "$(echo "$(date -d "$now" +%s) $here" | awk '{ printf "%.0f", $1 - $2 }') seconds"
"""
"""On w3: how far it is from w1, which is right, at the moment when a second begins there; then a step of so much.
What the way to the command costs does not count so.
"""

PROBLEM = Problem(
    name="sessions_are_rejected",
    title="Users are logged out at every other click",
    statement=told(
        "booking: 401 of 45 % of all requests with a session",
        'Users say: "I log in, I search, and I am told to log in again."',
        "The secret of both instances is the same; somebody compared it.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The wall clock of w3 is four minutes behind, and nothing keeps it in step. Tokens of one "
    "instance are not yet valid, or have expired, for the other.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=ClockJump(by_s=-240), node="w3", bites_within_s=90,
            shows="journalctl -u booking-api.service -n 60 --no-pager -o cat | grep -q '401 .*not yet valid'",
        ),
    ),
    oracles=judged(PERMITTED, Clocks(as_aspect="cause")),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(title="set the clock by that of w1", steps=(("w3", SET),)),
    decoys=(
        wait(),
        restart("w3", API),
        drain("w3"),
        decoy(
            "believe tokens for longer",
            ("w3", f"{edited('/etc/booking/booking.env', '$aBOOKING_LEEWAY=600')}; sudo systemctl restart {API}"),
            fails_as="off_the_permitted_list",
        ),
        decoy(
            "set the clock of w1 by that of w3",
            ("desk", 'ssh -F ssh_config w1 "sudo date -s @$(ssh -F ssh_config w3 date +%s.%N)"'),
            fails_as="cause_left",
        ),
    ),
    case="47: clocks that are apart; 49: a machine that lives in the past",
)  # fmt: skip
