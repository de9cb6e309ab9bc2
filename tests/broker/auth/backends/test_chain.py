"""The chain of backends: loopback users, and how long the cache keeps decisions."""

import asyncio

import pytest

from leveret.broker.auth.backends import backend
from leveret.broker.auth.backends.access_control import AccessControl, ChainStep
from leveret.broker.auth.backends.backend import CacheBackend, InternalBackend
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import BackendUser, Login, LoopbackOnlyError, User, Users


class Directory:
    """A backend that lets everybody in, under the name that was given, as a directory that ignores case."""

    module = "directory"
    has_topics = False
    is_local = False
    renews = False

    async def log_in(self, name, password):
        del password
        return Login(name)

    async def find(self, name):
        return Login(name)

    async def may_access(self, login, vhost, peer):
        del login, vhost, peer
        return True

    async def may(self, login, vhost, question):
        del login, vhost, question
        return True

    async def close(self):
        pass


def control(backend, users: Users) -> AccessControl:
    return AccessControl(
        [ChainStep(backend, backend)], users, seconds=15.0, now=lambda: 0.0, in_step=lambda work: work()
    )


@pytest.mark.parametrize("name", ["guest", "GUEST", "Gue\u017ft"])
def test_loopback_users_of_directories_have_any_case(name):
    """A directory takes any spelling for the same entry, so all of them are kept to this host."""
    chain = control(Directory(), Users())

    async def logins():
        far = await chain.logged_in(name, Password("x"), "192.0.2.1")
        return far, await chain.logged_in(name, Password("x"), "127.0.0.1")

    far, near = asyncio.run(logins())
    assert isinstance(far, LoopbackOnlyError)
    assert isinstance(near, BackendUser)


def test_internal_names_are_exact():
    """In the internal database GUEST is another user than guest."""
    users = Users()
    users.add(User("GUEST", "", ()))
    chain = control(InternalBackend(users), users)

    async def far() -> str:
        return str(await chain.logged_in("GUEST", Password("x"), "192.0.2.1"))

    assert "localhost" not in asyncio.run(far())


def test_the_cache_forgets_what_is_over(monkeypatch):
    """Not only when the same is asked again: memory is free soon after a wave of logins."""
    monkeypatch.setattr(backend, "ENTRIES", 100)
    clock = [0.0]
    kept = CacheBackend(
        Directory(), Directory(), seconds=15.0, refusals=False, now=lambda: clock[0], wall=lambda: 0
    )

    async def find(*names: str) -> int:
        for name in names:
            await kept.find(name)
        return len(kept)

    assert 100 == asyncio.run(find(*(f"u{number}" for number in range(150))))
    clock[0] = 16.0
    assert 100 - 8 + 1 == asyncio.run(find("new"))
    assert 20 == asyncio.run(find(*(f"later{number}" for number in range(19))))
    clock[0] = 40.0
    assert 20 - 8 + 1 == asyncio.run(find("last"))
