"""Mutant: the management API answers changes before they are on disk, which is a slow one."""

import time

from leveret.broker.http.server import ManagementServer
from leveret.broker.persistence.async_writes import AsyncWrites
from leveret.storage.store.environment import Environment

COMMIT_SECONDS = 1.0
_write = Environment.write


def when_stored(_server, done):
    done(True)


def write(environment, *batch):
    time.sleep(COMMIT_SECONDS)
    return _write(environment, *batch)


ManagementServer._when_stored = when_stored
AsyncWrites.open = staticmethod(lambda *_: None)
Environment.write = write
