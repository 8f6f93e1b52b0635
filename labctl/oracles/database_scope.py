"""What else was changed in the database: tables, rights, roles, settings, slots, and rows that no client changes.

A repair that turns checks of damaged pages off, gives everybody all rights, drops an index or a constraint that
was in the way, or rolls flights back may make clients happy and is none.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from labctl.oracles.nodes import on_each, sections
from labctl.oracles.postgres import SERVERS, ask
from labctl.oracles.scope import differences
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_MOST_TOLD = 20
_PATIENCE_S = 45
_GONE = 'database "booking" does not exist'
_SERVER = """
\\echo '## setting'
SELECT name, setting FROM pg_settings
  WHERE (source NOT IN ('default', 'client', 'session', 'override', 'environment variable') OR name IN (
    'fsync', 'full_page_writes', 'synchronous_commit', 'data_sync_retry', 'zero_damaged_pages',
    'ignore_checksum_failure', 'ignore_system_indexes', 'data_checksums', 'wal_level', 'max_wal_senders',
    'default_transaction_read_only', 'enable_seqscan', 'autovacuum', 'restart_after_crash', 'log_min_messages'))
    AND name NOT IN ('TimeZone', 'log_timezone', 'client_encoding', 'transaction_isolation');
"""
_PRIMARY = """
\\echo '## role'
SELECT rolname, concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,
  rolbypassrls, rolconnlimit, rolvaliduntil, md5(coalesce(rolpassword, ''))) FROM pg_authid;
SELECT 'member ' || r.rolname || ' of ' || g.rolname, 'there' FROM pg_auth_members m
  JOIN pg_roles r ON r.oid = m.member JOIN pg_roles g ON g.oid = m.roleid;
SELECT 'setting of ' || coalesce(r.rolname, 'all') || ' in ' || coalesce(d.datname, 'all'),
  array_to_string(s.setconfig, ' ') FROM pg_db_role_setting s
  LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase;
\\echo '## database'
SELECT datname, concat_ws(' ', pg_get_userbyid(datdba), datallowconn, datconnlimit, datacl::text) FROM pg_database;
\\echo '## slot'
SELECT slot_name, concat_ws(' ', slot_type, plugin, database, temporary) FROM pg_replication_slots;
\\echo '## object'
SELECT n.nspname || '.' || c.relname,
  concat_ws(' ', c.relkind, pg_get_userbyid(c.relowner), c.relpersistence, c.relacl::text, c.reloptions::text,
    c.relrowsecurity, c.relforcerowsecurity, i.indisvalid, i.indisready, pg_get_indexdef(i.indexrelid),
    CASE WHEN c.relkind IN ('v', 'm') THEN md5(pg_get_viewdef(c.oid)) END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_index i ON i.indexrelid = c.oid
  WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)';
SELECT 'schema ' || nspname, concat_ws(' ', pg_get_userbyid(nspowner), nspacl::text) FROM pg_namespace
  WHERE nspname !~ '^pg_(toast|temp)';
SELECT 'column ' || c.relname || '.' || a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
  a.attnotnull, a.attidentity, a.attgenerated, a.attacl::text, pg_get_expr(d.adbin, d.adrelid))
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
  WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND c.relnamespace = 'public'::regnamespace;
SELECT 'constraint ' || conrelid::regclass || '.' || conname,
  concat_ws(' ', pg_get_constraintdef(oid), convalidated)
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace;
SELECT 'trigger ' || tgrelid::regclass || '.' || tgname, concat_ws(' ', tgenabled, pg_get_triggerdef(oid))
  FROM pg_trigger WHERE NOT tgisinternal OR tgenabled <> 'O';
SELECT 'event trigger ' || evtname, evtenabled::text FROM pg_event_trigger;
SELECT 'rule ' || ev_class::regclass || '.' || rulename, md5(pg_get_ruledef(oid)) FROM pg_rewrite
  WHERE rulename <> '_RETURN' AND ev_class >= 16384;
SELECT 'function ' || oid::regprocedure, md5(prosrc || coalesce(proconfig::text, '') || prosecdef) FROM pg_proc
  WHERE oid >= 16384;
SELECT 'extension ' || extname, extversion FROM pg_extension;
SELECT 'policy ' || polname, polrelid::regclass::text FROM pg_policy;
SELECT 'publication ' || pubname, pg_get_userbyid(pubowner) FROM pg_publication;
SELECT 'default rights of ' || pg_get_userbyid(defaclrole), defaclacl::text FROM pg_default_acl;
\\echo '## rows'
SELECT 'flights but their seats', count(*) || ' ' ||
  md5(string_agg(concat_ws('/', id, origin, destination, extract(epoch FROM departs), price_cents, seats), ','
  ORDER BY id)) FROM flights;
"""


class DatabaseScope(Oracle):
    """Nothing changed in the database beside what `permitted` names: globs of `node:category item`.

    Categories: `setting`, of each server; `role`, `database`, `slot`, `object` (tables, indexes, columns,
    constraints, rights, functions, …) and `rows` of the one that takes writes, under `db` for a node, since that
    may be another one after a repair. `servers`: nodes with PostgreSQL; one that does not answer is no change of
    settings, other oracles tell that.
    """

    permitted: tuple[str, ...] = ()
    servers: tuple[str, ...] = SERVERS

    @property
    def name(self) -> str:
        return "database_scope"

    @property
    def aspect(self) -> Aspect:
        return "scope"

    def look(self, lab: Lookout) -> Seen:
        role = "SELECT pg_is_in_recovery();"
        said = on_each(self.servers, lambda node: ask(lab, node, f"\\echo '## role_of_server'\n{role}\n{_SERVER}"))
        found: dict[str, dict[str, dict[str, str]]] = {}
        errors = {node: one.error for node, one in said.items() if one.error}
        for node, one in said.items():
            if one.error:
                continue
            parts = sections(one.text)
            found[node] = {"setting": _items(parts.get("setting", ()))}
            if parts["role_of_server"] == ("f",) and "db" not in found:
                whole = ask(lab, node, _PRIMARY, patience_s=_PATIENCE_S)
                if whole.error:
                    errors[node] = whole.error
                else:
                    found["db"] = {part: _items(lines) for part, lines in sections(whole.text).items()}
        return {"state": found, "errors": errors}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        was, now = before["state"], after["state"]
        if "db" not in was:
            return self.found(Outcome.UNKNOWN, "the database was not read at the gate")
        gone = [node for node, error in sorted(after["errors"].items()) if error.endswith(_GONE)]
        if gone and "db" not in now:
            return self.found(Outcome.FAIL, *(f"{node}: the database booking is gone" for node in gone))
        unsure = []
        if "db" not in now:
            why = "; ".join(f"{node}: {error}" for node, error in sorted(after["errors"].items()))
            unsure = [f"no database could be read: {why or 'no server takes writes'}"]
        changes = [
            f"{node}:{change}"
            for node in sorted({*was, *now})
            if node in now and node in was
            for change in differences(was[node], now[node])
        ]
        foreign = [c for c in changes if not any(fnmatchcase(c.split(" was ")[0], p) for p in self.permitted)]
        told = foreign[:_MOST_TOLD]
        more = [f"and {len(foreign) - len(told)} more"] if len(foreign) > len(told) else []
        outcome = Outcome.FAIL if foreign else Outcome.UNKNOWN if unsure else Outcome.PASS
        return self.found(outcome, *told, *more, *unsure, changes=len(changes), foreign=len(foreign))


def _items(lines: tuple[str, ...]) -> dict[str, str]:
    return {item: text for item, _, text in (line.partition("\t") for line in lines)}
