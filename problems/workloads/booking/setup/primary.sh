# w2: the cluster on the data disk, roles, the standby's slot, tables and flights.
set -eu
setup=/var/lib/booking-setup
install -d -o postgres -g postgres -m 755 /srv/data/postgresql /srv/data/postgresql/17
pg_createcluster 17 main --datadir /srv/data/postgresql/17/main --encoding UTF8 --locale C.UTF-8 \
  --start-conf auto -- --data-checksums
install -o postgres -g postgres -m 640 $setup/pg_hba.conf /etc/postgresql/17/main/pg_hba.conf
install -o postgres -g postgres -m 644 $setup/booking.conf /etc/postgresql/17/main/conf.d/booking.conf
systemctl enable --quiet postgresql.service
systemctl start postgresql@17-main.service
sql() { runuser -u postgres -- psql -X -q -v ON_ERROR_STOP=1 "$@"; }
sql -d postgres < $setup/roles.sql > /dev/null
sql -d booking < $setup/schema.sql
systemctl start postgresql.service
rm -r $setup
