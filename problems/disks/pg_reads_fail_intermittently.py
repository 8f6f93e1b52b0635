"""Some reads of the database fail: the drive of w2 cannot read a few sectors under one table.

Nothing above the drive is wrong. The page is in the standby, as every change of it went there; written anew, the
sectors are mapped to spare ones. A restart does not help: it is what brought the error up, since until then the
page was in memory.
"""

from __future__ import annotations

from labctl.hardware.faults.medium_error import MediumError
from labctl.oracles.pages import Pages
from labctl.run.problem import Planted, Problem, Script
from problems.common import POSTGRES, decoy, judged, permits, restart, restarted, stop_traffic, told, wait
from problems.disks.pages import FILE_OF_FLIGHTS, FROM_THE_STANDBY, REBUILT_FROM_THE_STANDBY, START, STOP, ZEROED
from problems.words import WORDS, triple

CAUSE = triple("data disk of w2", "sectors cannot be read", "one table")
PERMITTED = permits()

PROBLEM = Problem(
    name="pg_reads_fail_intermittently",
    title="Some searches and bookings fail",
    statement=told(
        "booking: 5xx of GET /flights and PUT /bookings above 5 % for 5 minutes",
        'Users say: "Some routes always give an error, others work. Trying again does not help."',
        "The database was restarted a few minutes ago, in a maintenance that was announced and went well.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The data disk of w2 answers reads of some sectors with a medium error. They are under a page of "
    "the table flights, which had been in memory until PostgreSQL was restarted. All queries that need the page "
    "fail with an I/O error (58030); pages beside it, other tables and the standby are well.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=MediumError(file="/srv/data/*", sectors=8, seed=3), node="w2", first=STOP, then=START,
            finds=("file", FILE_OF_FLIGHTS), bites_within_s=120,
        ),
    ),
    oracles=judged(PERMITTED, Pages(as_aspect="cause")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(title="the page comes back from the standby", steps=(("desk", FROM_THE_STANDBY),)),
    alternative=Script(
        title="the primary is made anew from the standby", steps=(("desk", REBUILT_FROM_THE_STANDBY),)
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        stop_traffic(),
        decoy(
            "build the table's indexes anew, as for a damaged index",
            ("w2", 'sudo -u postgres psql -Xqd booking -c "REINDEX TABLE flights"'),
            fails_as="cause_left",
        ),
        decoy("overwrite the bad page with zeros", ("desk", ZEROED), fails_as="off_the_permitted_list"),
        decoy(
            "have the server overlook damage from now on",
            ("w2", "sudo -u postgres psql -Xqc \"ALTER SYSTEM SET zero_damaged_pages = on\""),
            ("w2", 'sudo -u postgres psql -Xqc "SELECT pg_reload_conf()"'),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="7, 57: a catalogue that cannot be read behind a server that runs; errors that readahead logs",
)  # fmt: skip
