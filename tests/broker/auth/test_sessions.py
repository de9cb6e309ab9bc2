"""Sessions of browsers."""

import contextlib

import pytest

from leveret.broker.auth.sessions import MOST_OF_ONE, Sessions, cookies
from leveret.broker.auth.users import BackendUser, User

ANN = User("ann", "hash", ("management",))
IDLE = 60.0


class Table(dict[str, User]):
    def current(self, user: User) -> User | None:
        return self.get(user.name)


@pytest.fixture
def users() -> Table:
    return Table(ann=ANN)


@pytest.fixture
def sessions(users) -> Sessions:
    return Sessions(users, IDLE)


def test_a_token_stands_for_its_user(sessions):
    """Each login has one of its own, of 256 random bits."""
    first, second = sessions.begin(ANN, 0.0), sessions.begin(ANN, 0.0)

    assert (ANN, ANN) == (sessions.find(first, 1.0), sessions.find(second, 1.0))
    assert first != second
    assert 43 == len(first)


@pytest.mark.parametrize("token", ["", "x", "\udcff", "x" * 1_000_000])
def test_other_tokens_are_worth_nothing(sessions, token):
    """Whatever they are."""
    sessions.begin(ANN, 0.0)

    assert None is sessions.find(token, 0.0)
    sessions.end(token)
    assert 1 == len(sessions)


def test_a_session_ends_without_use(sessions):
    """Each use begins the time anew; a look is none."""
    token = sessions.begin(ANN, 0.0)

    assert ANN == sessions.find(token, 50.0)
    assert ANN == sessions.find(token, 105.0, is_used=False)
    assert None is sessions.find(token, 111.0)
    assert 0 == len(sessions)


@pytest.mark.parametrize("now", [None, User("ann", "other", ("management",)), User("ann", "hash", ())])
def test_a_session_ends_with_what_the_user_was(sessions, users, now):
    """A new password, other tags, a deletion: each logs out everywhere."""
    token = sessions.begin(ANN, 0.0)
    users.clear()
    if now is not None:
        users["ann"] = now

    assert None is sessions.find(token, 1.0)


def test_a_logout_ends_the_session_of_one_browser(sessions):
    """Others go on."""
    here, there = sessions.begin(ANN, 0.0), sessions.begin(ANN, 0.0)
    sessions.end(here)

    assert (None, ANN) == (sessions.find(here, 1.0), sessions.find(there, 1.0))


def test_the_number_of_sessions_is_bounded(sessions):
    """One more of a user ends the one of its own that was not used for the longest time."""
    tokens = [sessions.begin(ANN, 0.0) for _ in range(MOST_OF_ONE)]
    sessions.find(tokens[0], 1.0)
    sessions.begin(ANN, 2.0)

    assert MOST_OF_ONE == len(sessions)
    assert (ANN, None) == (sessions.find(tokens[0], 3.0), sessions.find(tokens[1], 3.0))


def test_sessions_go_on_in_the_next_run(sessions, users):
    """With the time since their last use; not those of users who have changed meanwhile, nor of other backends."""
    users["bob"] = User("bob", "hash", ("management",))
    users["eve"] = User("eve", "hash", ("administrator",))
    tokens = [sessions.begin(user, 0.0) for user in (ANN, users["bob"], users["eve"], BackendUser("far", ""))]
    kept = sessions.kept(10.0, 1_000_000)
    users["bob"] = User("bob", "other", ("management",))
    users["eve"] = User("eve", "hash", ("management",))
    following = Sessions(users, IDLE)
    following.restore(kept, 500.0, 1_030_000)

    assert (ANN, None, None, None) == tuple(following.find(each, 500.0, is_used=False) for each in tokens)
    assert ANN == following.find(tokens[0], 500.0 + IDLE - 41, is_used=False)
    assert None is following.find(tokens[0], 500.0 + IDLE - 39)
    assert not any(each in str(kept) for each in (*tokens, ANN.password_hash))


@pytest.mark.parametrize("rows", [[1], [["zz", "ann", "", 0]], "text", {"a": 1}])
def test_a_file_that_is_none_is_an_error(sessions, rows):
    """And lets nobody in."""
    with contextlib.suppress(ValueError, TypeError):
        sessions.restore(rows, 0.0, 0)

    assert 0 == len(sessions)


def test_no_token_is_kept(sessions):
    """A reader of the table learns none."""
    token = sessions.begin(ANN, 0.0)

    assert token not in repr(sessions._sessions)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", {}),
        ("a=1; b=2", {"a": "1", "b": "2"}),
        ("a=1; a=2", {"a": "1"}),
        ("a; =x;;b==", {"": "x", "b": "="}),
    ],
)
def test_cookies_are_read(header, found):
    """Of two with one name the first is taken, which is the one with the longer path."""
    assert found == cookies(header)
