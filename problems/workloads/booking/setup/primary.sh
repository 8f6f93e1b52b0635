# w2: the database with its roles, the standby's slot, tables and flights.
set -eu
setup=/var/lib/booking-setup
systemctl enable --quiet postgresql.service
systemctl start postgresql@17-main.service postgresql.service
sql() { runuser -u postgres -- psql -X -q -v ON_ERROR_STOP=1 "$@"; }
sql -d postgres < $setup/roles.sql > /dev/null
sql -d booking < $setup/schema.sql
