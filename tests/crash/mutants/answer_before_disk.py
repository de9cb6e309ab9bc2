"""Mutant: the management API answers changes before they are on disk."""

from leveret.broker.http.server import ManagementServer


async def stored(_server):
    return True


ManagementServer._stored = stored
