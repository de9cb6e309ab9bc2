"""Each backend gives the result of the internal database in every case of a table."""

import re
from contextlib import AsyncExitStack

import aiormq
import pytest
from doubles import issuing
from processes import slapd
from services.authenticating import Service, broker, chain, connect, fill, serving

from leveret.broker.auth.backends.settings import CacheSettings, OAuth2Settings, Step

OPERATIONS = {
    "declare own": lambda channel: channel.queue_declare("own-1"),
    "declare shared": lambda channel: channel.queue_declare("shared-1"),
    "declare unnamed": lambda channel: channel.queue_declare("", exclusive=True),
    "declare passively": lambda channel: channel.queue_declare("shared-q", passive=True),
    "declare with dead letters": lambda channel: channel.queue_declare(
        "own-2", arguments={"x-dead-letter-exchange": "shared-x"}
    ),
    "declare exchange": lambda channel: channel.exchange_declare("own-x", exchange_type="topic"),
    "declare with alternate": lambda channel: channel.exchange_declare(
        "own-y", arguments={"alternate-exchange": "own-q"}
    ),
    "bind": lambda channel: channel.queue_bind("own-q", "amq.topic", routing_key="own.a"),
    "bind other key": lambda channel: channel.queue_bind("own-q", "amq.topic", routing_key="other.a"),
    "bind other exchange": lambda channel: channel.queue_bind("own-q", "shared-x", routing_key="own.a"),
    "publish": lambda channel: channel.basic_publish(b"m", routing_key="nowhere"),
    "publish to exchange": lambda channel: channel.basic_publish(b"m", exchange="shared-x"),
    "publish key": lambda channel: channel.basic_publish(b"m", exchange="amq.topic", routing_key="own.a"),
    "publish other key": lambda channel: channel.basic_publish(
        b"m", exchange="amq.topic", routing_key="other"
    ),
    "publish with CC": lambda channel: channel.basic_publish(
        b"m",
        exchange="amq.topic",
        routing_key="own.a",
        properties=aiormq.spec.Basic.Properties(headers={"CC": ["own.b", "other"]}),
    ),
    "get": lambda channel: channel.basic_get("own-q"),
    "get shared": lambda channel: channel.basic_get("shared-q"),
    "consume": lambda channel: channel.basic_consume("shared-q", _ignore),
    "purge": lambda channel: channel.queue_purge("own-q"),
    "delete": lambda channel: channel.queue_delete("own-q"),
    "delete exchange": lambda channel: channel.exchange_delete("shared-x"),
}
USERS = ("all", "own", "reader")
_CHANGING = re.compile(r"amq\.gen-[\w-]+|0x[0-9a-f]+")
CASES = {(user, operation) for user in USERS for operation in OPERATIONS}
LOGINS = {("all", "bad"): "", ("nothing", None): "", ("unknown", None): "", ("own", ""): ""}


async def _ignore(_message):
    """Take a message."""


def chains(service: Service):
    http = service.settings()
    cached = CacheSettings(authn="http", authz="http", refusals=True)
    split = chain("http", http=http)
    return {
        "http": chain("http", http=http),
        "cache": chain("cache", http=http, cache=cached),
        "second": chain("internal", "http", http=http),
        "split": type(split)(chain=(Step("http", "internal"),), http=http),
        "authorizes": type(split)(chain=(Step("internal", "http"),), http=http),
    }


def with_users(server) -> None:
    """Add the table's users to the internal database."""
    fill(server.users)


# The rights of `fill` as queries and as scopes.
QUERIES = {
    "tags": f"""[{{administrator, {{in_group, "cn=all,{slapd.GROUPS}"}}}},
        {{management, {{in_group, "cn=own,{slapd.GROUPS}"}}}}]""",
    "vhost_access": f"""{{'or', [{{in_group, "cn=all,{slapd.GROUPS}"}}, {{in_group, "cn=own,{slapd.GROUPS}"}},
        {{in_group, "cn=reader,{slapd.GROUPS}"}}]}}""",
    "resource_access": f"""{{'or', [
        {{in_group, "cn=all,{slapd.GROUPS}"}},
        {{'and', [{{in_group, "cn=own,{slapd.GROUPS}"}}, {{for, [
            {{permission, configure, {{match, "${{name}}", "^own-"}}}},
            {{permission, write, {{match, "${{name}}", "^(own-.*|amq\\\\.default|amq\\\\.topic)$"}}}},
            {{permission, read, {{match, "${{name}}", "^(own-.*|amq\\\\.topic)$"}}}}]}}]}},
        {{'and', [{{in_group, "cn=reader,{slapd.GROUPS}"}}, {{for, [
            {{permission, configure, {{constant, false}}}},
            {{permission, write, {{constant, false}}}},
            {{permission, read, {{match, "${{name}}", "^shared"}}}}]}}]}}]}}""",
    "topic_access": f"""{{'or', [{{'not', {{in_group, "cn=own,{slapd.GROUPS}"}}}},
        {{'not', {{equals, "${{name}}", "amq.topic"}}}}, {{match, "${{routing_key}}", "^own\\\\."}}]}}""",
}
SCOPES = {
    "all": "tag:administrator configure:*/* write:*/* read:*/*",
    "own": "tag:management configure:%2F/own-* write:%2F/own-* write:%2F/amq.default write:%2F/amq.topic/own.*"
    " read:%2F/own-* read:%2F/amq.topic/own.*",
    "reader": "read:%2F/shared*",
    "nothing": "",
}
FOREVER = 4_000_000_000


def token_of(name: str, password: str | None) -> str:
    """Return the token that a user has instead of a password; for a wrong password, one that is not signed."""
    if password is not None or name not in SCOPES:
        return password or "no-token"
    scopes = " ".join(f"rabbitmq.{each}" for each in SCOPES[name].split())
    return issuing.token(sub=name, scope=scopes, exp=FOREVER)


async def outcomes(server, secret=lambda _name, password: password) -> dict[tuple[str, str], str]:
    """Return the outcome of each case at a broker: `ok`, or the reply text."""
    found = {}
    for user in USERS:
        for operation, run in OPERATIONS.items():
            await _prepare(server)
            connection = await connect(server, user, secret(user, None))
            channel = await connection.channel()
            try:
                await run(channel)
                found[user, operation] = "ok"
            except aiormq.exceptions.AMQPError as error:
                found[user, operation] = _CHANGING.sub("...", str(error))
            await connection.close()
    for name, password in LOGINS:
        try:
            connection = await connect(server, name, secret(name, password))
        except (aiormq.exceptions.AMQPError, ConnectionError) as error:
            found[name, str(password)] = _CHANGING.sub("...", str(error))
        else:
            found[name, str(password)] = "ok"
            await connection.close()
    return found


async def _prepare(server) -> None:
    """Have the objects of the table, as they are before each case."""
    vhost = server.vhosts["/"]
    for name in list(vhost.queues):
        vhost.delete_queue(vhost.queues[name])
    for name in ("own-x", "own-y", "shared-x"):
        if vhost.router.get(name) is not None:
            vhost.delete_exchange(name, if_unused=False)
    server.loop.run_turn()
    await server.loop.finish_jobs()
    vhost.declare_exchange(
        "shared-x", "direct", durable=False, auto_delete=False, internal=False, arguments={}
    )
    for name in ("own-q", "shared-q"):
        vhost.create_queue(name, durable=False, exclusive_owner=None, auto_delete=False, arguments={})


@pytest.mark.parametrize("name", ["http", "cache", "second", "split", "authorizes"])
async def test_each_backend_decides_as_the_internal_database(name):
    """Every operation of every user has the outcome, and the text, that the internal database gives."""
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(serving())
        plain = await stack.enter_async_context(broker(prepare=with_users))
        expected = await outcomes(plain)
        prepare = with_users if name in {"split", "authorizes"} else None
        server = await stack.enter_async_context(broker(chains(service)[name], prepare=prepare))
        found = await outcomes(server)

    assert len(CASES) + len(LOGINS) == len(found)
    assert {"ok"} < set(found.values())
    assert expected == found


async def test_a_directory_decides_as_the_internal_database(tmp_path):
    """Every operation of every user has the outcome, and the text, of the internal database, by groups and queries."""
    pytest.importorskip("ldap3")
    entries = [slapd.person(name) for name in (*USERS, "nothing")] + [
        slapd.group(name, name) for name in USERS
    ]
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(broker(prepare=with_users))
        expected = await outcomes(plain)
        directory = stack.enter_context(slapd.running(tmp_path, entries))
        settings = directory.settings(queries=QUERIES)
        server = await stack.enter_async_context(broker(chain("ldap", ldap=settings)))
        found = await outcomes(server)

    assert expected == found


async def test_tokens_decide_as_the_internal_database():
    """Every operation of every user has the outcome, and the text, of the internal database, by scopes."""
    pytest.importorskip("jwt")
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(broker(prepare=with_users))
        expected = await outcomes(plain)
        keys = await stack.enter_async_context(issuing.issuing())
        settings = OAuth2Settings(resource_server_id="rabbitmq", jwks_uri=f"{keys.url}/keys")
        server = await stack.enter_async_context(broker(chain("oauth2", oauth2=settings)))
        found = await outcomes(server, token_of)

    assert expected == found
