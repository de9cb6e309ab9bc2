"""Encrypted values of the configuration, and rules for passwords."""

import subprocess

import pytest
from doubles.fakes import Node
from hypothesis import given, settings, strategies as st
from processes.commands import execute
from processes.running import ROOT, command, environment
from services.api import Api

from leveret.broker.auth.passwords import Password, WeakPasswordError, check_password
from leveret.broker.config.config import ConfigError, load
from leveret.broker.config.encrypted import PREFIX, Scheme, UnreadableError, decrypt, encrypt
from leveret.broker.config.sections import CredentialsConfig

OF_RABBITMQ = (
    f"{PREFIX}iiZGMHYlUsgyW2JKsuR2HKaHYk8NSGwNNgfv9zT6Qu6KHoS3GUAjo4U1jfI7ainfcdNYiTHrQUrpZoCM/GzLfw=="
)
"""Printed by `rabbitmqctl encode '<<"secret-value">>' passphrase` of RabbitMQ 3.10.8."""
KEY = "config_entry_decoder.passphrase"
SHA512 = "rabbit_password_hashing_sha512"


@settings(max_examples=50)
@given(st.text(max_size=300), st.text(max_size=50))
def test_what_is_encrypted_can_be_read(value, passphrase):
    """By the same passphrase; each time it is another text, and never the value."""
    if not passphrase:
        return
    first, second = encrypt(value, passphrase), encrypt(value, passphrase)

    assert first != second
    assert value == decrypt(first, passphrase) == decrypt(second, passphrase)


def test_values_of_rabbitmq_are_read():
    """As its command line writes them, and as its documentation says."""
    assert "secret-value" == decrypt(OF_RABBITMQ, "passphrase")
    assert "x" == decrypt(encrypt("x", "p", Scheme("sha512", 1000, 32)), "p")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (f"{PREFIX}!", "is not base64 after 'encrypted:'"),
        (f"{PREFIX}AAAA", "has a wrong length after 'encrypted:'"),
        (OF_RABBITMQ, "cannot be decrypted: config_entry_decoder.passphrase does not fit"),
    ],
)
def test_what_cannot_be_read_says_why(value, reason):
    """Without any part of the value."""
    with pytest.raises(UnreadableError, match=reason):
        decrypt(value, "wrong")


def test_encrypted_settings_are_decrypted(tmp_path):
    """Of any key, by the passphrase of any source, or that of a file."""
    assert (
        "secret-value"
        == load(settings=[f"default_pass={OF_RABBITMQ}", f"{KEY}=passphrase"]).users[0].password
    )
    environ = {"LEVERET_CONFIG_ENTRY_DECODER_PASSPHRASE": "passphrase", "RABBITMQ_DEFAULT_PASS": OF_RABBITMQ}
    assert "secret-value" == load(environ=environ).users[0].password
    file = tmp_path / "passphrase"
    file.write_text("passphrase\n")
    config = load(settings=[f"default_user={OF_RABBITMQ}", f"config_entry_decoder.passphrase_file={file}"])
    assert "secret-value" == config.users[0].name


def test_problems_name_the_key_and_not_the_value():
    """A missing passphrase, a wrong one, a file that is not there, one of a user without a home."""
    for more, reason in (
        ([], "--set: default_pass is encrypted, but config_entry_decoder.passphrase is not set"),
        (
            [f"{KEY}=x"],
            "--set: default_pass cannot be decrypted: config_entry_decoder.passphrase does not fit",
        ),
        (
            ["config_entry_decoder.passphrase_file=/none"],
            "--set: config_entry_decoder.passphrase_file: cannot read /none",
        ),
        (
            ["config_entry_decoder.passphrase_file=~no-such-user/x"],
            "--set: config_entry_decoder.passphrase_file: cannot read ~no-such-user/x",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            load(settings=[f"default_pass={OF_RABBITMQ}", *more])
        assert caught.value.problems[0].startswith(reason)
        assert OF_RABBITMQ[12:30] not in str(caught.value)


def test_the_command_encrypts_what_it_reads():
    """From the standard input, with the passphrase that the broker will have."""

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return execute(command("config", "encrypt", *more), input="a value\n", cwd=ROOT, env=environment())

    done = run("--set", f"{KEY}=p")
    assert "a value" == decrypt(done.stdout.strip(), "p")
    refused = run()
    assert 0 != refused.returncode
    assert "config_entry_decoder.passphrase is not set" in refused.stderr


# -- rules for passwords ----------------------------------------------------------------------------------------------


def node_with(**rules: object) -> Node:
    """Return a broker with rules for passwords, and none of the first users."""
    return Node(users=(), credentials=CredentialsConfig(**rules))


def put(node: Node, password: str) -> str:
    """Set a user's password as the operator; returns the reason of the refusal, or ''."""
    answer = Api(node, None).request("PUT", "users/ann", {"password": password, "tags": ""})
    return answer.body["reason"] if answer.status == 400 else ""


def test_short_passwords_are_refused():
    """With RabbitMQ's text; the length is that of the octets."""
    node = node_with(validator="min_length", min_length=8)

    assert "minimum required password length is 8" == put(node, "1234567")
    assert node.users.get("ann") is None
    assert "" == put(node, "1234567\u00e9")


def test_passwords_match_a_pattern():
    """By RE2, whatever the pattern, in time that is linear in the password."""
    node = node_with(validator="regexp", regexp="^(a+)+$")

    assert "provided password does not match the validator regular expression" == put(node, "a" * 500 + "!")
    assert "" == put(node, "aaa")


def test_imported_passwords_are_checked_and_hashes_are_not():
    """Nothing is imported if one of them is refused."""
    node = node_with(validator="min_length", min_length=8)
    given = {"name": "ann", "tags": "", "password": "short"}
    refused = Api(node, None).request("POST", "definitions", {"users": [{"name": "bob", "tags": ""}, given]})

    assert 400 == refused.status
    assert "minimum required password length is 8" in refused.body["reason"]
    assert [] == node.users.all()
    hashed = {"name": "ann", "tags": "", "password_hash": "", "hashing_algorithm": SHA512}
    assert 204 == Api(node, None).request("POST", "definitions", {"users": [hashed]}).status


def test_the_first_users_keep_to_the_rules():
    """The broker does not start otherwise; it says whose password it is, and not the password."""
    with pytest.raises(WeakPasswordError, match="password of the default user 'guest': minimum required"):
        Node(credentials=CredentialsConfig(validator="min_length", min_length=8))


def test_new_passwords_have_the_configured_hash():
    """Those that are there keep theirs, and are accepted."""
    node = Node()
    node.users.passwords.algorithm = SHA512
    put(node, "secret")
    user = node.users.get("ann")

    assert SHA512 == user.hashing_algorithm
    assert check_password(Password("secret"), user.password_hash, SHA512)
    assert "guest" == node.users.authenticate("guest", Password("guest"), "127.0.0.1").name
    assert "ann" == node.users.authenticate("ann", Password("secret"), "127.0.0.1").name


@pytest.mark.parametrize(
    ("settings_", "problem"),
    [
        (
            ["credential_validator.validation_backend=min_length"],
            "credential_validator.min_length is missing",
        ),
        (
            ["credential_validator.validation_backend=rabbit_credential_validator_password_regexp"],
            "credential_validator.regexp is missing",
        ),
        (
            ["credential_validator.validation_backend=regexp", "credential_validator.regexp=("],
            "credential_validator.regexp: invalid regular expression '('",
        ),
        (
            ["credential_validator.validation_backend=other"],
            "credential_validator.validation_backend must be one of",
        ),
        (
            ["password_hashing_module=rabbit_password_hashing_md5"],
            "password_hashing_module must be rabbit_password_hashing_sha256 or",
        ),
    ],
)
def test_rules_that_say_nothing_are_problems(settings_, problem):
    """A rule without its value, a pattern that is none, names of modules that are not here."""
    with pytest.raises(ConfigError) as caught:
        load(settings=settings_)

    assert [problem] == [each[: len(problem)] for each in caught.value.problems]


def test_names_of_rabbitmq_are_understood():
    """Those of its modules are its only ones."""
    config = load(
        settings=[
            "credential_validator.validation_backend = rabbit_credential_validator_min_password_length",
            "credential_validator.min_length = 12",
            f"password_hashing_module = {SHA512}",
        ]
    )

    assert ("min_length", 12, SHA512) == (
        config.credentials.validator,
        config.credentials.min_length,
        config.credentials.hashing,
    )
