#!/bin/sh
# Makes the databases at the first start, then becomes the server.
#
# /etc/postgres-tls   tls.crt and tls.key of the server
# /etc/postgres-init  SQL files, run as superuser in the order of their names, once
set -eu

# A start that was killed half-way begins anew: only a finished initialisation is renamed to its place.
if [ ! -d "$PGDATA" ]; then
    rm -rf "$PGDATA.new"
    initdb --pgdata="$PGDATA.new" --username=postgres --auth-local=trust --auth-host=scram-sha-256 \
        --encoding=UTF8 --locale=C --no-sync
    cat >> "$PGDATA.new/pg_hba.conf" <<'HBA'
hostssl all all all scram-sha-256
HBA
    cat >> "$PGDATA.new/postgresql.conf" <<'CONF'
listen_addresses = '*'
unix_socket_directories = '/tmp'
max_connections = 100
shared_buffers = 64MB
max_wal_size = 512MB
ssl = on
ssl_cert_file = '/etc/postgres-tls/tls.crt'
ssl_key_file = '/etc/postgres-tls/tls.key'
log_line_prefix = '%m [%p] %q%u@%d/%a '
CONF
    # Nobody but this script may connect before everything is in place.
    pg_ctl --pgdata="$PGDATA.new" --wait --silent --options="-c listen_addresses=''" start
    for file in /etc/postgres-init/*.sql; do
        [ -e "$file" ] || continue
        psql --username=postgres --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --file="$file"
    done
    pg_ctl --pgdata="$PGDATA.new" --wait --silent --mode=fast stop
    mv "$PGDATA.new" "$PGDATA"
fi
exec postgres -D "$PGDATA"
