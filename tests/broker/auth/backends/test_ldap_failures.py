"""The LDAP backend with directories that are down, slow, broken or hostile."""

import asyncio
import itertools
import logging

import aiormq
import pytest
from doubles.fake_directory import ALL, BIND, EXTENDED, SEARCH, SECONDS, codes, faked, result
from services.authenticating import broker, chain, connect, fill

from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.backends.guarded import FAILURES, Guarded
from leveret.broker.auth.backends.ldap_queries import UndecidedError, query_of
from leveret.broker.auth.backends.settings import ClientTLS, LDAPQueries, LDAPSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError

pytest.importorskip("ldap3")
from leveret.broker.auth.backends.ldap import LONGEST_PASSWORD, Question, _is

PASSWORD = Password("canary-secret")


@pytest.mark.parametrize("code", [5, 6, 10, 14, 16, 18, 19, 21, 32, 34, 48, 49, 50, 53, 65])
async def test_a_refused_bind_is_a_refused_login(code):
    """Each result that follows from the name or the password refuses the login, and is no failure of the directory."""
    async with faked(codes(bind=code)) as (_, backend):
        with pytest.raises(LoginRefusedError):
            await backend.log_in("ann", PASSWORD)


@pytest.mark.parametrize("code", [1, 2, 3, 7, 8, 11, 12, 13, 51, 52, 54, 80])
async def test_a_directory_that_cannot_answer_has_failed(code):
    """Each result that does not follow from them is a failure; nobody is let in."""
    async with faked(codes(bind=code)) as (_, backend):
        with pytest.raises(BackendError, match="the directory refuses to bind"):
            await backend.log_in("ann", PASSWORD)
    queries = LDAPQueries(
        vhost_access=ALL, resource_access=ALL, tags=query_of("tags", '[{a, {exists, "cn=a"}}]')
    )
    async with faked(codes(bind=0, search=code), queries=queries) as (_, backend):
        with pytest.raises(BackendError, match="the directory refuses a search"):
            await backend.log_in("ann", PASSWORD)


async def test_referrals_are_not_followed():
    """A directory that refers to another one gets no further request, and the other one none at all."""
    async with faked(codes(bind=0)) as (other, its):
        to = f"ldap://127.0.0.1:{its._settings.port}/".encode()

        def refer(number, tag, _octets):
            # 10 is a referral, whose addresses follow the text
            body = bytes([0x0A, 1, 10, 4, 0, 4, 0, 0xA3, len(to) + 2, 4, len(to)]) + to
            body = number + bytes([tag + 1, len(body)]) + body
            return [bytes([0x30, len(body)]) + body]

        async with faked(refer) as (fake, backend):
            with pytest.raises(LoginRefusedError):
                await backend.log_in("ann", PASSWORD)
            assert 1 == fake.connections
        assert 0 == other.connections


BROKEN = {
    "silence": lambda *_: [None],
    "drops": lambda *_: itertools.chain([b"\x30\x84\x7f\xff\xff\xff"], itertools.repeat(b"x")),
}


@pytest.mark.parametrize("name", ["silence", "drops"])
async def test_a_slow_directory_holds_nobody(name):
    """A question is given up in time, its thread ends, and the loop goes on meanwhile."""
    async with faked(BROKEN[name]) as (fake, backend):
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for number in (1, 2):
            asking = asyncio.create_task(backend.log_in("ann", PASSWORD))
            while len(fake.received) < number or turns < 100 * number:
                await asyncio.sleep(0)
            assert not asking.done()
            asking.cancel()
            await asyncio.wait([asking])
            # The only thread is free again, long before its own limits of a minute.
            await asyncio.get_running_loop().run_in_executor(backend._threads, lambda: None)
            assert number == fake.connections
            fake.received = b"x" * number
        counting.cancel()


async def test_a_backend_that_is_closed_asks_nothing_more():
    """Questions that are under way or wait end at once when the backend is closed, and no further one is asked."""
    async with faked(BROKEN["silence"]) as (fake, backend):
        asking = [asyncio.create_task(backend.log_in(name, PASSWORD)) for name in ("ann", "bob")]
        while not fake.received:
            await asyncio.sleep(0.01)
        await backend.close()
        # The sockets would wait for a minute, which is the deadline of this test.
        first, _ = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(first, BackendError)
        with pytest.raises(BackendError, match="it is closed"):
            await backend.log_in("ann", PASSWORD)
        for thread in backend._threads._threads:
            await asyncio.to_thread(thread.join, SECONDS)
            assert not thread.is_alive()
        assert 1 == fake.connections


async def test_a_server_that_does_not_answer_leaves_time_for_the_next():
    """Each server has its share of the time to connect in and to begin TLS; questions have all of it."""
    async with faked(codes(bind=0), servers=("127.0.0.1", "127.0.0.2", "127.0.0.3")) as (_, backend):
        connection = backend._directory._connection(Question(), "127.0.0.1", "", b"")
        assert SECONDS / 3 == connection.server.connect_timeout == connection.receive_timeout
        question = Question()
        with backend._directory._opened(question, "", b"") as opened:
            assert SECONDS == opened.socket.gettimeout()
        question.close()


async def test_a_long_password_is_a_refusal():
    """A password so long that a directory would end the connection is refused without it, and is no failure."""
    async with faked(codes(bind=0)) as (fake, backend):
        with pytest.raises(LoginRefusedError):
            await backend.log_in("ann", Password("x" * (LONGEST_PASSWORD + 1)))
        assert 0 == fake.connections


@pytest.mark.parametrize("scheme", ["ldap", "LDAP", "ldapi", "ldaps"])
async def test_the_scheme_of_a_server_does_not_switch_tls_off(scheme):
    """An address instead of a name, which the library takes, neither ends nor begins TLS: no password is sent."""
    servers = (f"{scheme}://127.0.0.1",)
    for more in ({"use_ssl": True}, {"use_ssl": True, "tls": ClientTLS(verify="verify_none")}, {}):
        if more or scheme == "ldaps":
            async with faked(codes(bind=0), servers=servers, **more) as (fake, backend):
                with pytest.raises(BackendError):
                    await backend.log_in("ann", PASSWORD)
                assert b"canary" not in fake.received


def test_a_part_of_the_values_is_no_answer():
    """An attribute of which Active Directory returns a range only is undecided; others are not concerned."""
    assert [True, False, False] == [_is("member", name) for name in ("Member", "member;lang-de", "memberOf")]
    with pytest.raises(UndecidedError):
        _is("Member", "member;range=0-1499")


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\0" * 100,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x30\x84\x00\x00\x00\x05abcde",
        b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x7f",
        b"\x30\x80\x02\x01\x01",
        b"\x30\x05\x02\x01\x63\x42\x00",
        b"\xff" * 70_000,
        result(b"\x02\x01\0", EXTENDED, 52, b"1.3.6.1.4.1.1466.20036"),
        b"\x30" + b"\x30" * 5000,
    ],
)
async def test_octets_that_are_no_ldap_are_a_failure(octets):
    """Whatever a directory sends instead of an answer, nobody is let in, and the error is that of the backend."""

    def answer(*_):
        yield octets
        raise ConnectionError

    async with faked(answer) as (fake, backend):
        with pytest.raises(BackendError):
            await backend.log_in("ann", PASSWORD)
        assert fake.received


async def test_an_answer_to_another_request_lets_nobody_in():
    """A success with the number of another request, or of another kind, is no success."""
    for other, tag in ((b"\x02\x01\x7f", BIND), (None, SEARCH), (None, 0x66)):

        def answer(number, *_, other=other, tag=tag):
            return [result(other or number, tag, 0), None]

        async with faked(answer) as (_, backend):
            guarded = Guarded(backend, 0.5, asyncio.get_running_loop().time)
            with pytest.raises((BackendError, LoginRefusedError)):
                await guarded.log_in("ann", PASSWORD)


@pytest.mark.parametrize("code", [0, 1, 2, 52, 53])
async def test_no_password_is_sent_without_the_tls_that_is_wanted(code):
    """If the directory refuses StartTLS, or agrees and then speaks no TLS, no password is sent."""
    answer = codes(extended=code, bind=0)
    async with faked(answer, use_starttls=True, tls=ClientTLS(verify="verify_none")) as (fake, backend):
        with pytest.raises(BackendError):
            await backend.log_in("ann", PASSWORD)
        assert b"1.3.6.1.4.1.1466.20037" in fake.received
        assert b"canary" not in fake.received


async def test_a_directory_that_is_down_stops_nobody(caplog):
    """Logins are refused, internal users go on, and no password is logged."""
    caplog.set_level(logging.DEBUG)
    queries = LDAPQueries(vhost_access=ALL, resource_access=ALL)
    ldap = LDAPSettings(servers=("127.0.0.1",), port=1, timeout=SECONDS, queries=queries, log=True)

    async with broker(
        chain("internal", "ldap", ldap=ldap), prepare=lambda server: fill(server.users)
    ) as server:
        internal = await connect(server, "all")
        for number in range(FAILURES + 2):
            with pytest.raises(aiormq.exceptions.ProbableAuthenticationError, match="Login was refused"):
                await connect(server, f"stranger-{number}", "canary-password")
        channel = await internal.channel()
        await channel.queue_declare("q")
        (guarded,) = [each for each in server.backends.backends if isinstance(each, Guarded)]
        assert guarded.outcomes["failed"] >= FAILURES
        assert FAILURES + 2 == guarded.outcomes["failed"] + guarded.outcomes["not_asked"]

    assert "rabbit_auth_backend_ldap failed: no connection" in caplog.text
    assert "canary" not in caplog.text


async def test_questions_wait_for_a_thread_and_not_for_ever():
    """More questions than threads wait, each for its time; a question that is given up while it waits is never asked."""
    async with faked(BROKEN["silence"], connection_pool_size=2) as (fake, backend):
        guarded = Guarded(backend, 0.5, asyncio.get_running_loop().time)
        outcomes = await asyncio.gather(
            *(guarded.log_in(f"u{number}", PASSWORD) for number in range(20)), return_exceptions=True
        )
        assert 20 == sum(isinstance(each, BackendError) for each in outcomes)
        for _ in range(2):
            await asyncio.get_running_loop().run_in_executor(backend._threads, lambda: None)
        assert fake.connections < 20
