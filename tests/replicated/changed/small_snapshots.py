"""Snapshots, segments and trims after a few megabytes instead of hundreds, so that a short run has many of them."""

from functools import partial

from leveret.broker.cli import replicated
from leveret.broker.replication.postgresql import PostgreSQLDriver
from leveret.broker.replication.settings import MEBIBYTE, Settings

replicated.Settings = partial(Settings, snapshot_octets=4 * MEBIBYTE, trim_cap=16 * MEBIBYTE)
PostgreSQLDriver.__init__.__kwdefaults__["segment_octets"] = MEBIBYTE
