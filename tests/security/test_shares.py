"""SEC-44: of everything that many share, each user or address has a share, so that nobody takes it all."""

import ast
import asyncio
import contextlib
import re
import socket
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from conformance.wire import Client, ClosedError
from doubles.fakes import Node
from processes.running import Running
from processes.waiting import until
from services.served_api import as_user, serving

from leveret.broker.administration import transfers
from leveret.broker.administration.access import BadRequestError
from leveret.broker.administration.tailing import MOST_TAILS, Wish
from leveret.broker.auth.backends.guarded import CALLER, Guarded
from leveret.broker.auth.sessions import MOST, MOST_OF_ONE, Sessions
from leveret.broker.auth.users import Login, User
from leveret.broker.config.keys import KEYS
from leveret.broker.http import server as driver
from leveret.broker.http.call import Callback, Item, Stored
from leveret.broker.http.route import Operation, Route, Work
from leveret.broker.http.server import SHARES, STREAMS
from leveret.broker.network.gate import RESERVED_FILES
from leveret.broker.process.places import Places
from leveret.broker.process.shares import Shares
from leveret.broker.tls.acceptor import HANDSHAKES, Acceptor

SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[2] / "broker"
_LIMIT = re.compile(r"(Maximum number|Number of|At most|Most|Places|Codes that)\b", re.IGNORECASE)
_KEY = re.compile(r"max|limit|pool|rate")

ONE = "of one request, message, queue, pattern or file: nobody else is concerned"
PIECE = "work between two turns: others come in between"
TABLE = "the oldest entries go, and are asked for or counted again"
OWN = "the broker's own, which no client chooses"
WITHOUT = {
    "administration.transfers.SAMPLE": ONE,
    "queue.stream_queue.MOST_TAGS": "of one stream; the offset that is idle longest goes, and the log says so",
    "administration.definitions_outcome.LISTED": ONE,
    "administration.definitions_outcome.PROBLEMS": ONE,
    "automaton.MOST_POSITIONS": ONE,
    "administration.definitions_outcome.SHOWN": ONE,
    "administration.definitions_outcome.DIFFERENCES": ONE,
    "administration.definitions_document.MOST_PROBLEMS": ONE,
    "administration.messages.MOST_MESSAGES": ONE,
    "administration.transfers.MOST_KEPT": "of the user who has most, the first goes",
    "amqp.tables.MAX_APART": ONE,
    "amqp.tables.MAX_ENTRIES": ONE,
    "auth.backends.backend.ENTRIES": TABLE,
    "auth.backends.ldap.MOST_ENTRIES": ONE,
    "auth.backends.ldap.MOST_VALUES": ONE,
    "auth.backends.http.CONNECTIONS": "`Guarded` shares them: `HTTPBackend.at_once`",
    "auth.backends.ldap_queries.GROUPS": ONE,
    "auth.backends.ldap_queries.PATTERNS": ONE,
    "auth.backends.oauth2.MOST": ONE,
    "auth.backends.tokens.MOST_KEYS": OWN,
    "auth.login_throttle.REMEMBERED": TABLE,
    "auth.login_throttle.SOURCES": TABLE,
    "auth.login_throttle.SHOWN": ONE,
    "auth.name_patterns._REMEMBERED": TABLE,
    "auth.name_patterns._SHOWN": ONE,
    "automaton._REMEMBERED": ONE,
    "channel.consumer_timeout._SCAN_LIMIT": PIECE,
    "http.feeds.EVENTS_OCTETS": "whoever has the newer pass is answered from what is kept",
    "http.server.BODY": ONE,
    "network.proxy_protocol.LONGEST": ONE,
    "queue.consumer_rotation._FEW": PIECE,
    "auth.permissions.REMEMBERED": ONE,
    "auth.permissions.KEPT": ONE,
    "auth.sessions.MOST_OF_ONE": "the share of `MOST`",
    "administration.transfers.MOST_OF_ONE": "the share of `MOST_RUNNING`",
    "auth.permissions._CACHED_NAMES": TABLE,
    "channel.settlement.PIECE": PIECE,
    "channel.transaction.MOST_OPERATIONS": ONE,
    "client.frames.MOST_UNASKED": "of one connection of the broker's own",
    "counters.sampling.WATCHED_CONFIRMS": ONE,
    "counters.sampling.WATCHED_MESSAGES": ONE,
    "counters.sampling.MOST_EVENTS": "further ones are counted, and nobody is refused",
    "counters.totals.MOST_SIZES": PIECE,
    "embedded.fault_state.LONGEST_DISTANCE": ONE,
    "export.stream.PAUSES": "the one writer of the export waits",
    "export.rows.MOST": ONE,
    "http.dispatch.MOST_DECISIONS": ONE,
    "http.server.SHARES": "the shares themselves",
    "message_filter.message_filter.MOST_VALUES": ONE,
    "perf.producer.BATCH": OWN,
    "perf.run.CONNECTING": OWN,
    "persistence.committer.MAX_RECORDS": "nobody is refused: the next commit begins",
    "process.memory.LOADED_MOST": OWN,
    "process.shares.REMEMBERED": TABLE,
    "process.logs.KEPT": TABLE,
    "process.logs.MOST_TEXT": ONE,
    "queue.dead_letter_line.STEP": PIECE,
    "queue.queue.RUN_BUDGET": PIECE,
    "queue.retention.STEP": PIECE,
    "queue.stream_queue.SHARE": PIECE,
    "queue.unknown_arguments._MOST_COMPARED": ONE,
    "replication.follower.MARKS": OWN,
    "shovel.pace.SHARED_AMONG": "shovels take turns",
    "transfer.transfer.BATCH": PIECE,
    "vhost.copies.AT_ONCE": PIECE,
    "vhost.copies.PIECE": PIECE,
    "vhost.firehose.MOST_WAITING": "the operator's own trace; deliveries wait",
    "vhost.tail.MOST_WAITING": ONE,
    "vhost.dead_lettering._MOST_VALUES": ONE,
}
"""Limits that are not shared, or whose share is something else: by module and constant, with the reason."""
VHOST = "`limits.vhost.*` bound the part of a vhost; an object has no other owner, and the operator sets both"
WITHOUT_BY_KEY = {
    "max_half_open": "its share is `max_half_open_per_address`",
    "connection_max": "the operator's own number; the share of a user is `limits.user.$name.max_connections`",
    "channel_max_per_node": "none by default; the share of a user is `limits.user.$name.max_channels`",
    "vhost_max": "administrators only create vhosts",
    "cluster_queue_limit": VHOST,
    "cluster_exchange_limit": VHOST,
    "limits.message_ids": "a queue knows as many as there is room for beside it (`message_ids.Room`)",
    "limits.unsent_bytes": "who has most is disconnected first",
    "auth_ldap.connection_pool_size": "`Guarded` shares them: `LDAPBackend.at_once`",
    "ssl_handshake_rate": "`max_half_open_per_address` bounds those of one address that go on",
    "queue_index_max_journal_entries": OWN,
    "storage.ram_limit": "the memory monitor divides it among queues",
    "disk_free_limit.absolute": OWN,
    "disk_free_limit.relative": OWN,
    "replication.max_batch": OWN,
    "auth.max_failures": "counts by address",
}
"""Keys that bound what several share, with where the share is; others with such names are of one client or object."""
OF_ONE = re.compile(r"\$name|per_connection|per_channel|per_address|_frame_max|^frame_max|^channel_max$|message_size|^limits\.|"
                    r"publish_(rate|bytes)|topic_max_hash|hash_max_weight|delivery_limit|^channel_tx_message_max$|^max_connections$")  # fmt: skip


def limits() -> dict[str, str]:
    """Return the constants of the broker that say how many there may be of something, with the text of their module."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        if "cli" in path.relative_to(ROOT).parts:
            continue  # clients
        text = path.read_text()
        lines = text.splitlines()
        for one, doc in pairwise([*ast.parse(text).body, ast.Pass()]):
            if not isinstance(one, ast.Assign | ast.AnnAssign):
                continue
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            described = [lines[one.end_lineno - 1].partition("  # ")[2]]
            if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                described.append(str(doc.value.value))
            if any(map(_LIMIT.match, described)):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found[f"{name}.{ast.unparse(target)}"] = text
    return found


def test_sec_44_every_limit_has_a_share_or_a_reason():
    """A constant that bounds something is the number of places of `Shares`, or is listed with the reason why not."""
    found = limits()
    shared = {
        name
        for name, text in found.items()
        if re.search(rf"\b(Shares(\.of_addresses)?|Connections)\({name.rpartition('.')[2]}\b", text)
    }

    assert [] == sorted(set(found) - shared - set(WITHOUT))
    assert [] == sorted(set(WITHOUT) - set(found)), "there is no such limit any more"
    assert [] == sorted(set(WITHOUT) & shared)
    assert {"http.server.AT_WORK", "http.server.STREAMS", "auth.sessions.MOST"} <= shared


def test_sec_44_every_key_has_a_share_or_a_reason():
    """A key that bounds what clients share is listed with its share."""
    names = {key.name for key in KEYS if _KEY.search(key.name)}

    assert [] == sorted(name for name in names - set(WITHOUT_BY_KEY) if not OF_ONE.search(name))
    assert set() == set(WITHOUT_BY_KEY) - names


# -- each of them ---------------------------------------------------------------------------------------------------


class Accounts(dict[str, User]):
    def current(self, user: User) -> User | None:
        return user


def test_sec_44_sessions_of_others_stay():
    """However often one user logs in, others stay logged in to the page; its own oldest session ends."""
    sessions = Sessions(Accounts(), 3600.0)
    root = sessions.begin(User("root", ""), 0.0)
    own = [sessions.begin(User("ann", ""), 1.0) for _ in range(MOST)]
    assert sessions.find(root, 2.0) is not None
    assert MOST_OF_ONE + 1 == len(sessions)
    assert [None, "ann"] == [
        found and found.name for found in (sessions.find(own[0], 2.0), sessions.find(own[-1], 2.0))
    ]

    for number in range(MOST - MOST_OF_ONE):
        sessions.begin(User(f"u{number}", ""), 3.0)
    assert MOST == len(sessions)
    assert None not in (sessions.find(root, 4.0), sessions.find(own[-1], 4.0)), "its oldest went"
    for token in own:
        sessions.end(token)
        sessions.end(token)
    assert len(sessions._sessions) == len(sessions._places)


def test_sec_44_tails_of_others_begin():
    """One user has a quarter of the tails."""
    node = Node()
    users = [
        node.administration.users.put(None, name, tags=("administrator",), password="x") for name in "ab"
    ]
    del users

    def tail(name):
        follower = node.administration.tailing.start(node.users.get(name), "/", "amq.fanout", Wish())
        follower.begin()
        return follower

    own = [tail("a") for _ in range(MOST_TAILS // 4)]
    with pytest.raises(BadRequestError, match=f"{MOST_TAILS // 4} exchanges are tailed by the user already"):
        tail("a")
    tail("b").close()
    own.pop().close()
    tail("a")


def test_sec_44_results_of_others_stay(monkeypatch):
    """Of the transfers that have ended, those of the user who has most are forgotten first."""
    monkeypatch.setattr(transfers, "MOST_KEPT", 4)
    node = Node()
    for name in ("ann", "bob"):
        node.administration.users.put(None, name, tags=("administrator",), password="x")
        node.administration.users.set_permissions(None, "/", name, configure=".*", write=".*", read=".*")
    for name in ("from", "to"):
        node.administration.topology.declare_queue(None, "/", name)

    def move(name):
        number = node.administration.transfers.start_move(node.users.get(name), "/", "from", "to")
        node.clock.run()
        return number

    first = move("bob")
    own = [move("ann") for _ in range(10)]
    assert [first, *own[-3:]] == [each["id"] for each in node.administration.transfers.transfers(None)]


class Slow:
    """A backend that answers when a test says so."""

    module, has_topics, is_local, renews, at_once = "slow", False, False, False, 8

    def __init__(self):
        self.answered = asyncio.Event()
        self.asked = 0

    async def may_access(self, *_question):
        self.asked += 1
        await self.answered.wait()
        return True

    async def reach(self):
        """Be there."""


async def test_sec_44_one_address_leaves_questions_to_others():
    """However many questions of one address a backend has under way, it is asked about others."""
    backend = Slow()
    guarded = Guarded(backend, SECONDS, asyncio.get_running_loop().time)

    async def ask(address):
        CALLER.set((address, "u"))
        return await guarded.may_access(Login("u"), "/", address)

    crowd = [asyncio.create_task(ask("192.0.2.66")) for _ in range(30)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 6 == backend.asked
    other = asyncio.create_task(ask("192.0.2.1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 7 == backend.asked
    backend.answered.set()
    async with asyncio.timeout(SECONDS):
        assert await other
        await asyncio.gather(*crowd)


async def test_sec_44_who_waits_gets_a_place_in_turn():
    """Owners get places in turn, however many of one of them wait, and those that give up leave nothing behind."""
    places = Places(Shares(2, 2))
    order: list[str] = []
    release = asyncio.Semaphore(0)

    async def work(owner):
        async with places.of(owner):
            order.append(owner)
            await release.acquire()

    tasks = [asyncio.create_task(work("a")) for _ in range(6)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(work("b")) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    for _ in range(7):
        release.release()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert ["a", "a", "b", "a", "b"] == sorted(order[:2]) + order[2:5] or ["a", "a", "a", "b", "a"] == order[
        :5
    ]
    assert 7 == len(order)
    assert (0, {}) == (len(places._shares), places._waiting)


async def test_sec_44_a_place_that_is_not_wanted_any_more_is_passed_on():
    """A waiting one that gives up in the moment of a release is cancelled and nothing else, and the next one has the place."""
    places = Places(Shares(1, 1))
    got: list[int] = []

    async def work(number):
        async with places.of("a"):
            got.append(number)

    async with places.of("a"):
        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)

    assert [asyncio.CancelledError, type(None), type(None)] == [type(end) for end in ends]
    assert [1, 2] == got
    assert (0, {}) == (len(places._shares), places._waiting)


async def test_sec_44_handshakes_of_others_go_on(monkeypatch):
    """However many handshakes one address begins, that of another is not given up."""
    forever = asyncio.Event()
    served: list[str] = []

    async def serve(_self, sock):
        try:
            served.append(sock.getpeername()[0])
            await forever.wait()
        finally:
            served.remove(sock.getpeername()[0])
            sock.close()

    monkeypatch.setattr(Acceptor, "_serve", serve)
    listening = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listening, asyncio.Protocol, None, "a test")
    with contextlib.ExitStack() as opened:
        address = listening.getsockname()
        opened.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
        await until(lambda: served)
        for _ in range(3 * HANDSHAKES):
            opened.enter_context(socket.create_connection(address, source_address=("127.0.0.3", 0)))
            for _ in range(5):
                await asyncio.sleep(0)
        await until(lambda: len(served) == HANDSHAKES)
        assert "127.0.0.2" in served
        acceptor.close()
        await until(lambda: not acceptor._tasks)
    assert (0, {}) == (len(acceptor._places), acceptor._tasks)


# -- over sockets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", list(Work))
async def test_sec_44_requests_of_others_are_answered(work):
    """While one user has as many requests at work as it may, of any kind, others' are answered, and its own short ones."""
    begun: list[threading.Event] = []
    is_over = False

    def wait(_call):
        if not is_over:
            begun.append(end := threading.Event())
            yield partial(end.wait, SECONDS)
        return Item({})

    route = Route("wait", "x", {"GET": Operation(wait, "Wait.", work=work)})
    async with serving(route) as (_, server, client):
        url = f"http://127.0.0.1:{server.address[1]}/api/"
        asked = [asyncio.create_task(client.get(f"{url}wait", headers=as_user("ann"))) for _ in range(20)]
        await until(lambda: len(begun) == SHARES[work])
        for name in ["root", *(["ann"] if work is not Work.SHORT else [])]:
            async with client.get(f"{url}whoami", headers=as_user(name)) as answer:
                assert 200 == answer.status
        other = asyncio.create_task(client.get(f"{url}wait", headers=as_user("root")))
        await until(lambda: len(begun) == SHARES[work] + 1)
        begun.pop().set()
        assert 200 == (await other).status
        is_over = True
        for each in begun:
            each.set()
        assert [200] * 20 == [each.status for each in await asyncio.gather(*asked)]
        assert not [each for each in server._places.values() if len(each._shares)]


@pytest.mark.parametrize("need", ["another", "disk"])
async def test_sec_44_who_waits_for_others_has_no_place(need):
    """Requests that wait for the disk or for others, as a publish for its confirm, keep their user's others from nothing."""
    begun: list = []

    def wait(_call):
        yield Callback(begun.append) if need == "another" else Stored()
        return Item({})

    async with serving(Route("wait", "x", {"GET": Operation(wait, "Wait.")})) as (node, server, client):
        node.journal = SimpleNamespace(when_safe=begun.append)
        url = f"http://127.0.0.1:{server.address[1]}/api/"
        asked = [asyncio.create_task(client.get(f"{url}wait", headers=as_user("ann"))) for _ in range(20)]
        await until(lambda: len(begun) == 20)
        async with client.get(f"{url}whoami", headers=as_user("ann")) as answer:
            assert 200 == answer.status
        for end in begun:
            end(True)
        assert [200] * 20 == [each.status for each in await asyncio.gather(*asked)]
        assert not [each for each in server._places.values() if len(each._shares)]


async def test_sec_44_who_waits_too_long_is_told(monkeypatch):
    """A request that gets no place in time is answered with 503."""
    monkeypatch.setattr(driver, "PLACE_SECONDS", 0.05)
    begun: list = []

    def wait(_call):
        yield Callback(begun.append)
        return Item({})

    async with serving(Route("wait", "x", {"GET": Operation(wait, "Wait.", work=Work.BODIES)})) as (
        _,
        server,
        client,
    ):
        url = f"http://127.0.0.1:{server.address[1]}/api/wait"
        first = asyncio.create_task(client.get(url, headers=as_user("ann")))
        await until(lambda: begun)
        async with client.get(url, headers=as_user("ann")) as answer:
            assert 503 == answer.status
            assert driver.TOO_MANY == (await answer.json())["reason"]
        begun.pop()(None)
        assert 200 == (await first).status


async def test_sec_44_streams_of_others_begin():
    """One user has a quarter of the event streams."""
    async with serving() as (_, server, client), contextlib.AsyncExitStack() as opened:
        url = f"http://127.0.0.1:{server.address[1]}/api/leveret/events?topics=overview"

        async def status(name):
            return (await opened.enter_async_context(client.get(url, headers=as_user(name)))).status

        most = STREAMS // 4
        assert [200] * most + [503] == [await status("ann") for _ in range(most + 1)]
        assert 200 == await status("root")


async def test_sec_44_connections_of_others_stay():
    """However many connections one address opens, those of another stay, also before they have sent a request."""
    async with serving() as (_, server, _):

        def connected(host):
            sock = socket.create_connection(server.address, source_address=(host, 0))
            sock.setblocking(False)
            return sock

        with contextlib.ExitStack() as opened:
            quiet = opened.enter_context(connected("127.0.0.2"))
            await until(server._transports)
            slow = b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nu"
            for _ in range(3 * driver.CONNECTIONS):
                sock = opened.enter_context(connected("127.0.0.3"))
                with contextlib.suppress(OSError):
                    sock.sendall(slow)
                await asyncio.sleep(0)
            await until(lambda: len(server._transports()) < 2 * driver.CONNECTIONS)
            quiet.sendall(b"GET /api/auth HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with asyncio.timeout(SECONDS):
                found = await asyncio.get_running_loop().sock_recv(quiet, 100)
            assert found.startswith(b"HTTP/1.1 200 OK")


def test_sec_44_file_descriptors_are_left_for_others(tmp_path):
    """One user without a limit of its own leaves a tenth of the connections that descriptors allow to others."""
    settings = ("--set", "default_users.other.password=other")
    clients = []
    try:
        with Running(tmp_path, *settings, files=RESERVED_FILES + 20) as running:
            running.wait_for("Server startup complete")

            def login(*login):
                clients.append(Client(running.address, timeout=SECONDS))
                return clients[-1].login(*login)

            for _ in range(18):
                login()
            with pytest.raises(ClosedError) as caught:
                login()
            assert "it has 18 connections, and the rest of what" in caught.value.close.fields["reply_text"]
            login("other", "other").channel().queue("q")
    finally:
        for each in clients:
            each.close_socket()
