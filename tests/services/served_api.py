"""The management API of a broker in the running loop, with two users, over sockets."""

import contextlib

import aiohttp
from doubles.fakes import Node

from leveret.broker.http.route import Route, Router
from leveret.broker.http.server import ManagementServer
from leveret.broker.management.routes import ROUTES

SECONDS = 20.0


@contextlib.asynccontextmanager
async def serving(*routes: Route):
    """Serve the API of a new broker with the users root and ann, who may do everything."""
    node = Node()
    node.is_open = True
    for name in ("root", "ann"):
        node.administration.users.put(None, name, tags=("administrator",), password=name)
        node.administration.users.set_permissions(None, "/", name, configure=".*", write=".*", read=".*")
    server = ManagementServer(node, Router([*ROUTES, *routes]))
    await server.start("127.0.0.1", 0)
    try:
        timeout = aiohttp.ClientTimeout(SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            yield node, server, client
    finally:
        await server.stop()


def as_user(name: str) -> dict[str, str]:
    return {"authorization": aiohttp.encode_basic_auth(name, name)}
