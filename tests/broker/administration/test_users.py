"""Administration of users, their permissions and their limits."""

import base64
import json

import pytest
from doubles.fakes import Client, Node

from leveret.broker.administration import BadRequestError, ForbiddenError
from leveret.broker.auth.passwords import (
    ALGORITHMS,
    MD5,
    SHA256,
    SHA512,
    Password,
    check_password,
    hash_password,
)
from leveret.broker.auth.users import User

HASHES = {each: hash_password(Password("secret"), each) for each in ALGORITHMS}


@pytest.fixture
def users(node):
    return node.administration.users


def test_a_user_made_here_may_log_in(node, users):
    """A password given in clear is kept as a hash only."""
    users.put(None, "ann", tags=["monitoring"], password="secret")
    shown = users.get(None, "ann")

    assert check_password(Password("secret"), shown["password_hash"])
    assert ("ann", ["monitoring"], {}) == (shown["name"], shown["tags"], shown["limits"])
    assert "ann" == node.users.authenticate("ann", Password("secret"), "10.0.0.1").name


def test_a_user_keeps_the_password_that_is_not_given(users):
    """Tags can be changed alone; a new user without a password is locked out."""
    users.put(None, "ann", tags=[], password="secret")
    before = users.get(None, "ann")["password_hash"]
    users.put(None, "ann", tags=["management"])
    users.put(None, "bob", tags=[])

    assert (before, "") == (users.get(None, "ann")["password_hash"], users.get(None, "bob")["password_hash"])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("", {}, "user name cannot be empty"),
        ("ann", {"hashing_algorithm": "rot13"}, "unknown password hashing algorithm 'rot13'"),
    ],
)
def test_impossible_users(users, name, options, text):
    """Invalid user definitions are refused."""
    with pytest.raises(BadRequestError, match=text):
        users.put(None, name, tags=[], **options)


def test_a_deleted_user_is_disconnected():
    """The connections of a deleted user are closed with RabbitMQ's text; others stay."""
    node = Node()
    node.administration.users.put(None, "ann", tags=[], password="ann")
    node.administration.users.set_permissions(None, "/", "ann", configure="", write="", read="")
    leaving, staying = Client(node, user="ann"), Client(node)
    node.administration.users.delete(None, "ann")
    node.run_turn()

    assert [
        "0 connection.close reply_code=320 reply_text=\"CONNECTION_FORCED - user 'ann' is deleted\""
    ] == leaving.sent()
    assert [] == staying.sent()
    assert node.users.get("ann") is None


def test_rights_survive(node, users):
    """Users, permissions, topic permissions and limits survive a restart."""
    users.put(None, "ann", tags=["management"], password="secret")
    users.set_permissions(None, "/", "ann", configure="^c", write="^w", read="^r")
    users.set_topic_permissions(None, "/", "ann", "amq.topic", write="^{username}[.]", read=".*")
    users.set_limits(None, "ann", {"max-connections": 3})
    users.set_limits(None, "ann", {"max-channels": 4})
    node.commit()
    users = node.restarted().administration.users

    assert [{"user": "ann", "vhost": "/", "configure": "^c", "write": "^w", "read": "^r"}] == list(
        users.permissions(None, user="ann")
    )
    assert [
        {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^{username}[.]", "read": ".*"}
    ] == list(users.topic_permissions(None))
    assert [{"user": "ann", "value": {"max-connections": 3, "max-channels": 4}}] == list(users.limits(None))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max-queues": 1}, 'Unrecognised terms [{<<"max-queues">>,1}] in user-limits'),
        ({"max-connections": "1"}, 'max-connections should be a number, actually was <<"1">>'),
        ({"max-connections": True}, "max-connections should be a number, actually was true"),
        (5, "user-limits not a list 5"),
    ],
)
def test_wrong_limits(users, limits, text):
    """Limits are checked as RabbitMQ checks them."""
    with pytest.raises(BadRequestError) as refused:
        users.set_limits(None, "guest", limits)
    assert text == str(refused.value)


def test_only_administrators(users):
    """Only administrators may list or change users."""
    monitor = User("m", "", ("monitoring",))
    for ask in (
        lambda: users.all(monitor),
        lambda: users.get(monitor, "guest"),
        lambda: users.put(monitor, "m", tags=["administrator"]),
        lambda: users.delete(monitor, "guest"),
        lambda: users.permissions(monitor),
        lambda: users.set_permissions(monitor, "/", "m", configure="", write="", read=""),
        lambda: users.clear_permissions(monitor, "/", "guest"),
        lambda: users.topic_permissions(monitor),
        lambda: users.set_topic_permissions(monitor, "/", "m", "x", write="", read=""),
        lambda: users.clear_topic_permissions(monitor, "/", "guest"),
        lambda: users.set_limits(monitor, "m", {}),
        lambda: users.clear_limits(monitor, "m"),
    ):
        with pytest.raises(ForbiddenError, match="Not administrator user"):
            ask()


@pytest.mark.parametrize(("version", "algorithm"), [
    ("3.0.0", MD5), ("3.5.7", MD5), ("3.5", SHA256), ("2.8.7", SHA256), ("0.0.0", SHA256), ("0.0.0+1.g5", SHA256),
    ("3.6.0", SHA256), ("3.10.8", SHA256), ("3.50.1", SHA256), ("4.3.6", SHA256), ("", SHA256), (None, SHA256),
])  # fmt: skip
def test_hashes_of_old_files_are_those_of_their_version(node, version, algorithm):
    """A hash without an algorithm is MD5 in files of RabbitMQ 3.0 to 3.5, and else SHA-256, as RabbitMQ takes it."""
    row = {"name": "ann", "password_hash": hash_password(Password("secret"), algorithm), "tags": ""}
    named = {**row, "name": "bob", "hashing_algorithm": SHA512, "password_hash": HASHES[SHA512]}
    file = {"users": [row, named, {"name": "eve", "password": "clear", "tags": ""}]}
    heading = {} if version is None else {"rabbit_version": version}
    node.administration.definitions.import_file(None, json.dumps({**heading, **file}).encode())

    for name, password in (("ann", "secret"), ("bob", "secret"), ("eve", "clear")):
        assert name == node.users.authenticate(name, Password(password), "10.0.0.1").name
    assert [algorithm, SHA512, SHA256] == [
        node.users.get(name).hashing_algorithm for name in ("ann", "bob", "eve")
    ]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("size", [1, 4, 16, 20, 32, 36, 64, 68, 100])
@pytest.mark.parametrize("way", ["put", "import"])
def test_a_hash_that_can_never_match_is_refused(node, users, algorithm, size, way):
    """A hash of another size than its algorithm's is refused, with the user's name and what to do."""
    row = {"name": "ann", "password_hash": base64.b64encode(bytes(size)).decode(), "tags": []}
    row["hashing_algorithm"] = algorithm

    def give():
        if way == "put":
            users.put(None, **row)
        else:
            node.administration.definitions.import_file(None, json.dumps({"users": [row]}).encode())

    if size == {MD5: 20, SHA256: 36, SHA512: 68}[algorithm]:
        give()
        return
    fitting = {20: MD5, 36: SHA256, 68: SHA512}.get(size)
    remedy = (
        "export the user again" if fitting is None else f"if it is one of {fitting}, set 'hashing_algorithm'"
    )
    with pytest.raises(BadRequestError) as caught:
        give()
    assert f"the password_hash of user 'ann' has {size} bytes, one of {algorithm} has" in str(caught.value)
    assert remedy in str(caught.value)
    assert node.users.get("ann") is None


def test_who_has_such_a_hash_keeps_it(node, users):
    """Tags of a user from an earlier import can be changed, although it cannot log in."""
    node.users.add(User("ann", "AAAA", (), SHA256))
    users.put(None, "ann", tags=["management"], password_hash="AAAA", hashing_algorithm=SHA256)

    assert ("AAAA", ("management",)) == (node.users.get("ann").password_hash, node.users.get("ann").tags)
