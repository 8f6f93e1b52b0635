# w3: a copy of the primary, which then follows it through its slot.
set -eu
setup=/var/lib/booking-setup
install -d -o postgres -g postgres -m 755 /srv/data/postgresql /srv/data/postgresql/17
install -d -o postgres -g postgres -m 700 /srv/data/postgresql/17/main
runuser -u postgres -- pg_basebackup --host 10.77.0.2 --username replicator --no-password \
  --pgdata /srv/data/postgresql/17/main --wal-method stream --slot w3 --checkpoint fast --write-recovery-conf
pg_createcluster 17 main --datadir /srv/data/postgresql/17/main --start-conf auto
install -o postgres -g postgres -m 640 $setup/pg_hba.conf /etc/postgresql/17/main/pg_hba.conf
install -o postgres -g postgres -m 644 $setup/booking.conf /etc/postgresql/17/main/conf.d/booking.conf
systemctl enable --quiet postgresql.service
systemctl start postgresql@17-main.service postgresql.service
rm -r $setup
