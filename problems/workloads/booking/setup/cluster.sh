# w2 and w3: a cluster on the data disk. That of w3 makes room for a copy of the other.
set -eu
setup=/var/lib/booking-setup
install -d -o postgres -g postgres -m 755 /srv/data/postgresql /srv/data/postgresql/17
pg_createcluster 17 main --datadir /srv/data/postgresql/17/main --encoding UTF8 --locale C.UTF-8 \
  --start-conf auto -- --data-checksums
install -o postgres -g postgres -m 640 $setup/pg_hba.conf /etc/postgresql/17/main/pg_hba.conf
install -o postgres -g postgres -m 644 $setup/booking.conf /etc/postgresql/17/main/conf.d/booking.conf
