"""What problems of single pages share: where a table is, and how one page of it comes back from the standby."""

from __future__ import annotations

from problems.common import DATA, POSTGRES

FILE_OF_FLIGHTS = (
    "cd / && echo /srv/data/postgresql/17/main/$(runuser -u postgres -- psql -XAtqd booking -c "
    "\"SELECT pg_relation_filepath('flights')\")"
)
"""Prints the file of the table `flights`."""

STOP = f"systemctl stop {POSTGRES}"
START = f"systemctl start {POSTGRES}"
"""The restart that empties the database's own cache: only then is a page read from the disk again."""

FROM_THE_STANDBY = f"""
set -eu
on() {{ ssh -F ssh_config "$@"; }}
sql() {{ on "$1" "sudo -u postgres psql -XAtqd booking -c \\"$2\\"" < /dev/null; }}
file={DATA}/$(sql w2 "SELECT pg_relation_filepath('flights')")
pages=$(sql w2 "SELECT pg_relation_size('flights') / 8192")
sql w2 CHECKPOINT
sleep 5
sql w3 CHECKPOINT
page=0
while [ $page -lt $pages ]; do
  said=$(sql w2 "SELECT count(*) FROM flights WHERE ctid >= '($page,0)' AND ctid < '($((page+1)),0)'" 2>&1) || true
  echo "page $page: $said"
  case $said in *"could not read block"*|*"invalid page"*)
    on w3 "sudo -u postgres dd if=$file bs=8192 skip=$page count=1 status=none" < /dev/null > page
    [ $(wc -c < page) = 8192 ]
    on w2 "sudo -u postgres dd of=$file bs=8192 seek=$page count=1 conv=notrunc,fsync status=none" < page
  esac
  page=$((page+1))
done
sql w2 "SELECT count(*) FROM flights"
"""  # noqa: S608 - of numbers
"""At the desk: each page of the table that the primary cannot read comes from the standby, which has had every
change of it: nobody has changed a page on the primary since it could not be read there."""

REBUILT_FROM_THE_STANDBY = f"""
set -eu
on() {{ ssh -F ssh_config "$@" < /dev/null; }}
sql() {{ on "$1" "sudo -u postgres psql -XAtqd booking -c \\"$2\\""; }}
on w2 'sudo systemctl stop {POSTGRES}'
on w2 'sudo -u postgres mv {DATA} {DATA}.old'
on w2 'sudo -u postgres pg_basebackup -h 10.77.0.3 -U replicator -w -D {DATA} -X stream -c fast'
on w2 'sudo -u postgres rm -f {DATA}/standby.signal'
on w2 'sudo -u postgres cp {DATA}.old/postgresql.auto.conf {DATA}/postgresql.auto.conf'
on w2 'sudo systemctl start {POSTGRES}'
sql w2 "SELECT pg_create_physical_replication_slot('w3', true)"
on w2 'sudo -u postgres rm -r {DATA}.old'
"""
"""At the desk: the primary is made anew from its standby, which had all when the primary was shut down."""

ZEROED = f"""
set -eu
on() {{ ssh -F ssh_config "$@"; }}
sql() {{ on "$1" "sudo -u postgres psql -XAtqd booking -c \\"$2\\"" < /dev/null; }}
file={DATA}/$(sql w2 "SELECT pg_relation_filepath('flights')")
pages=$(sql w2 "SELECT pg_relation_size('flights') / 8192")
page=0
while [ $page -lt $pages ]; do
  said=$(sql w2 "SELECT count(*) FROM flights WHERE ctid >= '($page,0)' AND ctid < '($((page+1)),0)'" 2>&1) || true
  case $said in *"could not read block"*|*"invalid page"*)
    on w2 "sudo -u postgres dd if=/dev/zero of=$file bs=8192 seek=$page count=1 conv=notrunc,fsync" < /dev/null
  esac
  page=$((page+1))
done
"""  # noqa: S608 - of numbers
"""At the desk: what cannot be read is overwritten with zeros. The errors are gone, and so are the flights."""
