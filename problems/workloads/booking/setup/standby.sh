# w3: a copy of the primary, which then follows it through its slot.
set -eu
find /srv/data/postgresql/17/main -mindepth 1 -delete
runuser -u postgres -- pg_basebackup --host 10.77.0.2 --username replicator --no-password \
  --pgdata /srv/data/postgresql/17/main --wal-method stream --slot w3 --checkpoint fast --write-recovery-conf
systemctl enable --quiet postgresql.service
systemctl start postgresql@17-main.service postgresql.service
