import subprocess
import sys

import pytest

from leveret.broker.auth import users as auth
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.auth.passwords import SHA256, Password, check_password, hash_password
from leveret.broker.auth.permissions import Permissions
from leveret.broker.auth.users import LoginRefusedError, User, UserLimits, Users, VHostLimits, is_reached

SECRET = Password("secret")


@pytest.fixture
def users():
    made = Users()
    made.add(User("guest", hash_password(SECRET), ("administrator",)))
    made.add(User("app", hash_password(SECRET)))
    made.set_permissions("guest", "/", ".*", ".*", ".*")
    return made


def test_hash_of_rabbitmq():
    """A hash that RabbitMQ documents as that of `test12` with salt 908DC60A is reproduced."""
    documented = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert documented == hash_password(Password("test12"), salt=bytes.fromhex("908DC60A"))
    assert check_password(Password("test12"), documented)
    assert not check_password(Password("test13"), documented)


def test_hashes_are_salted():
    """Two hashes of one password differ and both match it."""
    first, second = hash_password(SECRET), hash_password(SECRET)
    assert first != second
    assert check_password(SECRET, first)
    assert check_password(SECRET, second)


def test_other_algorithms():
    """SHA-512 is hashed and checked under RabbitMQ's name for it, unknown names are refused."""
    algorithm = "rabbit_password_hashing_sha512"
    assert check_password(SECRET, hash_password(SECRET, algorithm), algorithm)
    assert not check_password(SECRET, hash_password(SECRET, algorithm), SHA256)
    with pytest.raises(ValueError, match="rot13"):
        hash_password(SECRET, "rot13")


@pytest.mark.parametrize("stored", ["", "AAAA", "not base64!"])
def test_hashes_that_are_none(stored):
    """A hash that is empty, too short or not base64 matches no password."""
    assert not check_password(SECRET, stored)
    assert not check_password(Password(""), stored)


def test_nothing_shows_a_secret():
    """The repr of a password or a user shows nothing that must not be in a log."""
    stored = hash_password(SECRET)
    assert "secret" not in f"{SECRET} {SECRET!r} {[SECRET]}"
    assert stored not in repr(User("u", stored))


@pytest.mark.parametrize(
    ("name", "password", "peer", "reason"),
    [
        ("guest", "wrong", "127.0.0.1", "user 'guest' - invalid credentials"),
        ("nobody", "secret", "127.0.0.1", "user 'nobody' - invalid credentials"),
        ("guest", "secret", "10.0.0.1", "user 'guest' can only connect via localhost"),
        ("guest", "wrong", "10.0.0.1", "user 'guest' - invalid credentials"),
        (
            "guest",
            "",
            "127.0.0.1",
            "user 'guest' attempted to log in with a blank password, which is prohibited",
        ),
    ],
)
def test_refused_logins(users, name, password, peer, reason):
    """A refused login has a reason for the log."""
    with pytest.raises(LoginRefusedError) as caught:
        users.authenticate(name, Password(password), peer)
    assert reason == str(caught.value)


def test_logins(users):
    """The right password lets a user in, guest from loopback only, others from anywhere."""
    assert users.authenticate("guest", SECRET, "::1").name == "guest"
    assert users.authenticate("app", SECRET, "10.0.0.1").name == "app"


def test_blank_password_never_matches():
    """A user whose hash is that of the blank password cannot log in with it."""
    users = Users()
    users.add(User("u", hash_password(Password(""))))
    with pytest.raises(LoginRefusedError):
        users.authenticate("u", Password(""), "127.0.0.1")


def test_loopback_users_are_configured():
    """The set of loopback users is configuration."""
    users = Users(loopback_users=["app"])
    users.add(User("app", hash_password(SECRET)))
    users.add(User("guest", hash_password(SECRET)))
    users.authenticate("guest", SECRET, "10.0.0.1")
    with pytest.raises(LoginRefusedError):
        users.authenticate("app", SECRET, "10.0.0.1")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::1%lo", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("::2", False), ("", False), ("localhost", False),
    ],
)  # fmt: skip
def test_loopback(host, expected):
    """Loopback is 127.0.0.0/8 and ::1, also as IPv4 in IPv6; names are not looked up."""
    assert expected == auth.is_loopback(host)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*", "anything", True),
        ("", "anything", False),
        ("^$", "anything", False),
        ("app", "my-app-queue", True),
        ("^app", "my-app", False),
        ("^app-", "app-1", True),
        ("^(amq\\.gen.*|amq\\.default)$", "", True),
        ("^amq\\.default$", "amq.default", True),
        ("^ü$", "ü", True),
        ("^.$", "ü", False),
        ("^\\xff$", "\udcff", True),
        ("^(?!secret)", "public", True),
        ("^(?!secret)", "secret-1", False),
    ],
)
def test_patterns(pattern, name, expected):
    """Patterns search anywhere in the octets of a name, as re:run does; '' is the default exchange."""
    permissions = Permissions(pattern, "", "")
    assert expected == permissions.check("configure", name)
    assert expected == permissions.check("configure", name)
    assert not permissions.check("read", name)


def test_kinds_are_apart():
    """Each kind of permission has its own pattern."""
    permissions = Permissions("^c", "^w", "^r")
    assert [permissions.check("configure", name) for name in "cwr"] == [True, False, False]
    assert [permissions.check("write", name) for name in "cwr"] == [False, True, False]
    assert [permissions.check("read", name) for name in "cwr"] == [False, False, True]


def test_invalid_patterns_change_nothing(users):
    """An invalid pattern is refused with its text, and the old permissions stay."""
    generation = users.generation
    with pytest.raises(InvalidPatternError, match=r"invalid regular expression '\('"):
        users.set_permissions("guest", "/", "(", "", "")
    with pytest.raises(InvalidPatternError):
        users.set_topic_permissions("guest", "/", "amq.topic", "(", "")
    assert generation == users.generation
    assert users.permissions("guest", "/").check("read", "q")


def test_cache_is_bounded():
    """A bounded number of names is remembered, however many are asked for."""
    permissions = Permissions("^q", "", "")
    for number in range(3000):
        assert permissions.check("configure", f"q{number}")
    assert len(permissions._configure._known) <= 1024


def test_vhost_access(users):
    """A permission row opens the vhost, even one of empty patterns; no row closes it."""
    assert users.may_access("guest", "/")
    assert not users.may_access("app", "/")
    users.set_permissions("app", "/", "", "", "")
    assert users.may_access("app", "/")
    users.clear_permissions("app", "/")
    assert not users.may_access("app", "/")
    assert not users.permissions("app", "/").check("read", "q")


def test_topic_permissions(users):
    """Routing keys are restricted by topic permissions, with the names of user and vhost filled in literally."""
    users.set_topic_permissions("app", "a.b", "amq.topic", "^{username}\\.{vhost}\\.", "^x")
    topics = users.topic_permissions("app", "a.b")
    assert topics
    assert topics.check("amq.topic", "write", "app.a.b.key")
    assert not topics.check("amq.topic", "write", "app.a-b.key")
    assert topics.check("amq.topic", "read", "x.y")
    assert not topics.check("amq.topic", "read", "app.a.b.key")
    assert topics.check("other", "write", "anything")
    assert list(users.topic_permission_rows()) == [
        ("app", "a.b", "amq.topic", "^{username}\\.{vhost}\\.", "^x")
    ]


def test_no_topic_permissions(users):
    """Without topic permissions every routing key is allowed, and clearing them restores that."""
    assert not users.topic_permissions("app", "/")
    users.set_topic_permissions("app", "/", "one", "", "")
    users.set_topic_permissions("app", "/", "two", "", "")
    users.clear_topic_permissions("app", "/", "one")
    assert users.topic_permissions("app", "/").check("one", "write", "k")
    assert not users.topic_permissions("app", "/").check("two", "write", "k")
    users.clear_topic_permissions("app", "/")
    assert not users.topic_permissions("app", "/")


def test_generation(users):
    """Every change increments the generation; reading does not."""
    seen = {users.generation}

    def changed():
        fresh = users.generation not in seen
        seen.add(users.generation)
        return fresh

    users.permissions("guest", "/").check("read", "q")
    assert not changed()
    users.set_permissions("guest", "/", "", "", "")
    assert changed()
    users.set_topic_permissions("guest", "/", "x", "", "")
    assert changed()
    users.clear_permissions("guest", "/")
    assert changed()
    users.remove("guest")
    assert changed()
    users.remove_vhost("/")
    assert changed()


def test_vhosts_of_rights(users):
    """Those of permissions and of topic permissions, until they are deleted."""
    before = users.vhosts()
    users.set_permissions("guest", "first", "", "", "")
    users.set_topic_permissions("guest", "second", "amq.topic", "", "")
    assert {"first", "second"} == users.vhosts() - before

    users.remove_vhost("first")
    users.remove_vhost("second")
    assert before == users.vhosts()


def test_removal(users):
    """A new user or vhost inherits nothing from a removed one of the same name."""
    users.set_topic_permissions("guest", "/", "x", "", "")
    users.set_user_limits("guest", UserLimits(1, 1))
    users.remove("guest")
    assert users.get("guest") is None
    assert not users.may_access("guest", "/")
    assert not users.topic_permissions("guest", "/")
    assert users.user_limits("guest") == UserLimits()
    users.set_permissions("app", "v", ".*", ".*", ".*")
    users.set_vhost_limits("v", VHostLimits(1, 1))
    users.remove_vhost("v")
    assert not users.may_access("app", "v")
    assert users.vhost_limits("v") == VHostLimits()


def test_limits(users):
    """Limits are kept by name until they are cleared; a negative one is never reached, zero always."""
    users.set_user_limits("app", UserLimits(max_connections=-1, max_channels=0))
    assert users.user_limits("app") == UserLimits(-1, 0)
    users.set_vhost_limits("/", VHostLimits(max_connections=5, max_queues=-1))
    assert users.vhost_limits("/") == VHostLimits(5, -1)
    assert users.has_vhost_limits("/")
    users.clear_vhost_limits("/")
    assert users.vhost_limits("/") == VHostLimits()
    assert not users.has_vhost_limits("/")
    assert [False, True, False, True] == [is_reached(*each) for each in ((-1, 5), (0, 0), (None, 5), (5, 5))]


def test_tags():
    """The tag impersonator lets a user publish with another user's id."""
    assert User("a", "", ("impersonator",)).may_impersonate
    assert not User("a", "", ("administrator",)).may_impersonate


def test_re2_is_loaded_late():
    """A broker whose patterns are all trivial never loads RE2."""
    code = (
        "import sys; from leveret.broker.auth.permissions import Permissions; Permissions('.*', '^$', ''); "
        "assert 're2' not in sys.modules; Permissions('^q', '', ''); assert 're2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
