#!/bin/sh
# Runs once in the first server, before it serves: lets the standbys in, and has commits wait for one of them from its
# next start on. The standbys copy these settings, which they need once they are promoted.
set -eu
echo 'host replication leveret samenet scram-sha-256' >> "$PGDATA/pg_hba.conf"
cat >> "$PGDATA/postgresql.conf" <<'END'
synchronous_standby_names = 'ANY 1 (s0, s1, s2)'
wal_keep_size = 1GB
END
