#!/bin/sh
# Starts a standby of the server `s0`: at the first start with a copy of its data.
#
#   standby.sh NAME [OPTION OF POSTGRES ...]
#
# PGPASSWORD is the password of the user leveret.
set -eu
name=$1
shift

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    until pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --checkpoint fast \
        --dbname "host=${PRIMARY:-s0} port=${PRIMARY_PORT:-5432} user=leveret password=$PGPASSWORD application_name=$name"
    do
        echo "waiting for the primary" >&2
        sleep 1
    done
    chmod 700 "$PGDATA"
fi
exec postgres "$@"
