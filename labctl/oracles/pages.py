"""Whether the database can be read: every page of it on the disk, every table by a new session, and each index
says what its table says.

A server that answers may do so out of its buffers, or from before a disk went bad: so pages are read past the page
cache and their checksums compared, and the tables are read by a session that has nothing yet.
"""

from __future__ import annotations

from labctl.oracles.nodes import on_each, python, sections
from labctl.oracles.postgres import SERVERS, ask
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_READ = """
\\echo '## checksums'
SHOW data_checksums;
\\echo '## by_table'
SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;
SELECT 'flights', count(*) FROM flights; SELECT 'bookings', count(*) FROM bookings;
SELECT 'outbox', count(*) FROM outbox;
DO $$
DECLARE one regclass;
BEGIN
  FOR one IN SELECT oid FROM pg_class WHERE relkind IN ('r', 't', 'm') AND relpersistence <> 't' LOOP
    EXECUTE format('SELECT count(*) FROM %s', one);
  END LOOP;
END $$;
RESET enable_indexscan; RESET enable_indexonlyscan;
SET enable_seqscan = off;
\\echo '## by_index'
SELECT 'flights', count(id) FROM flights WHERE id IS NOT NULL;
SELECT 'bookings', count(reference) FROM bookings WHERE reference >= '';
SELECT 'outbox', count(id) FROM outbox WHERE id > 0;
"""


class Pages(Oracle):
    """On each of `servers`, pages of the cluster at `path` have the checksums they say, and tables can be read.

    Checksums are on. Pages are looked at for `within_s` seconds at most; where that is not enough, nothing is
    known.
    """

    servers: tuple[str, ...] = SERVERS
    path: str = "/srv/data/postgresql/17/main"
    within_s: float = 80.0
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "pages"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    def look(self, lab: Lookout) -> Seen:
        return on_each(self.servers, lambda node: self._look(lab, node))

    def _look(self, lab: Lookout, node: str) -> Seen:
        said = ask(lab, node, f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;\n{_READ}\nCOMMIT;", patience_s=40)
        given = {"path": self.path, "within_s": self.within_s}
        disk = python(lab, node, "pages", given, timeout_s=self.within_s + 60.0)
        return {"error": said.error, **sections(said.text), **disk}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        bad: list[str] = []
        unsure: list[str] = []
        pages = 0
        for node, seen in sorted(after.items()):
            pages += seen["pages"]
            bad += [f"{node}: {file}: wrong checksum of page {blocks[0]}" for file, blocks in seen["wrong"]]
            bad += [f"{node}: {file}: {why}" for file, why in seen["unread"]]
            if not seen["pages"] and not seen["late"]:
                bad.append(f"{node}: there is no database at {self.path}")
            if seen["late"]:
                unsure.append(f"{node}: {seen['late']} files were not looked at within {self.within_s:g} s")
            if seen["error"]:
                bad.append(f"{node}: a new session: {seen['error']}")
                continue
            if seen["checksums"] != ["on"] and seen["checksums"] != ("on",):
                bad.append(f"{node}: checksums are off")
            for table, index in zip(seen["by_table"], seen["by_index"], strict=True):
                if table != index:
                    name, rows = table.split("\t")
                    bad.append(f"{node}: {name} has {rows} rows, its index {index.split()[-1]}")
        outcome = Outcome.FAIL if bad else Outcome.UNKNOWN if unsure else Outcome.PASS
        return self.found(outcome, *bad, *unsure, pages=pages)
