"""A broker with authentication backends in the running loop, and a web service that decides by a table of users."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiormq
from aiohttp import web

from leveret.broker.auth.backends.settings import BackendSettings, HTTPSettings, Step
from leveret.broker.auth.passwords import Password, hash_password
from leveret.broker.auth.users import LoginRefusedError, User, Users
from leveret.broker.config.config import Config
from leveret.broker.config.values import Listener
from leveret.broker.server.server import Server

SECONDS = 20.0
"""Longest wait for an answer."""


def fill(users: Users) -> None:
    """Add the users of the permission table."""
    for name, tags in (
        ("all", ("administrator",)),
        ("own", ("management",)),
        ("reader", ()),
        ("nothing", ()),
    ):
        users.add(User(name, hash_password(Password(f"{name}-secret")), tags))
    users.set_permissions("all", "/", ".*", ".*", ".*")
    users.set_permissions(
        "own", "/", "^own-", "^(own-.*|amq\\.default|amq\\.topic)$", "^(own-.*|amq\\.topic)$"
    )
    users.set_permissions("reader", "/", "", "", "^shared")
    users.set_topic_permissions("own", "/", "amq.topic", "^own\\.", "^own\\.")


class Service:
    """A web service with RabbitMQ's contract for HTTP backends, which decides by a table of users."""

    def __init__(self) -> None:
        self.users = Users()
        fill(self.users)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and parameters of each request."""
        self.answer: Callable[[str, dict[str, str]], Any] | None = None
        """Answers instead of the table, unless it returns None."""
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        form = dict(await request.post()) if request.method == "POST" else dict(request.query)
        kind = request.path.rpartition("/")[2]
        self.asked.append((request.method, kind, form))
        given = None if self.answer is None else self.answer(kind, form)
        if given is not None:
            if not isinstance(given, str | web.Response):
                given = await given
            if isinstance(given, web.Response):
                return given
        return web.Response(text=given or self._decide(kind, form))

    def _decide(self, kind: str, form: dict[str, str]) -> str:
        name = form["username"]
        if kind == "user":
            try:
                user = (
                    self.users.authenticate(name, Password(form["password"]), "127.0.0.1")
                    if "password" in form
                    else self.users.get(name)
                )
            except LoginRefusedError:
                user = None
            return "deny" if user is None else f"allow {' '.join(user.tags)}"
        if kind == "vhost":
            is_allowed = self.users.may_access(name, form["vhost"])
        elif kind == "resource":
            is_allowed = self.users.permissions(name, form["vhost"]).check(form["permission"], form["name"])
        else:
            topics = self.users.topic_permissions(name, form["vhost"])
            is_allowed = topics.check(form["name"], form["permission"], form["routing_key"])
        return "allow" if is_allowed else "deny"

    def settings(self, **more: Any) -> HTTPSettings:
        """Return the settings of a backend that asks this service."""
        paths = {f"{kind}_path": f"{self.url}/auth/{kind}" for kind in ("user", "vhost", "resource", "topic")}
        return HTTPSettings(**({"http_method": "post", "request_timeout": SECONDS} | paths | more))


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    """Run the web service on a free port."""
    service = Service()
    application = web.Application()
    application.router.add_route("*", "/auth/{kind}", service.handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()


@asynccontextmanager
async def broker(
    settings: BackendSettings | None = None, *, prepare: Callable[[Server], object] | None = None, **more: Any
) -> AsyncIterator[Server]:
    """Run a broker without a disk in this loop; `prepare` changes it before it starts."""
    config = {"auth_failure_delay": 0.0, "users": (), "slow_step": 0.0} | more
    server = Server(
        Config(listeners=(Listener("127.0.0.1", 0),), backends=settings or BackendSettings(), **config)
    )
    if prepare is not None:
        prepare(server)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(seconds=0.5)


def chain(*names: str, **more: Any) -> BackendSettings:
    return BackendSettings(chain=tuple(Step(name, name) for name in names), **more)


async def connect(
    server: Server, name: str, password: str | None = None, vhost: str = "%2F"
) -> aiormq.Connection:
    port = server.gate.listeners.addresses[0][1]
    secret = f"{name}-secret" if password is None else password
    return await aiormq.connect(f"amqp://{name}:{secret}@127.0.0.1:{port}/{vhost}?heartbeat=0")
