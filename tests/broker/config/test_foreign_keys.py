"""Keys of RabbitMQ: each is obeyed, warned of or refused with a reason; no key that protects is only warned of."""

import re
from pathlib import Path

import pytest

from leveret.broker.config.config import ConfigError, load, renamed
from leveret.broker.config.keys import Draft, KeyTable
from leveret.broker.config.rabbitmq import foreign_key
from leveret.broker.config.values import Setting

KEYS = {
    name: words
    for name, *words in map(
        str.split, Path(__file__).with_name("rabbitmq_keys.txt").read_text(encoding="ascii").splitlines()
    )
}
"""All keys of the schemas of RabbitMQ 3.13.7 and 4.3.6, with all plugins: which has it, and whether its name speaks of
protection. `$name` is a name that the administrator chooses."""
NAMES = [name for name, words in KEYS.items() if "protects" in words]

HARMLESS = {
    r"(mqtt|web_mqtt|stomp|web_stomp|stream|amqp1_0|amqp10_client)\..*": "there is no listener and no client of this protocol",
    r"cluster_formation\..*": "there is no discovery of peers, so nothing is asked and nobody is let in",
    r"credentials_obfuscation\..*": "it keeps passwords out of RabbitMQ's logs, and ours never have any (SEC-26)",
    r"log\.syslog\..*": "logs are sent to no other host",
    r"tracing\..*|management_agent\..*|shovel\..*": "it is a login or a setting of something that does not exist",
    r"num_acceptors\.ssl": "speed",
    r".*\.(client|secure)_renegotiat(ion|e)|ssl_allow_poodle_attack": "what may be allowed by it is always refused",
    r".*\.dh|auth_ldap\.ssl_options\.dh.*": "without parameters that cipher suite is not offered; a client has none",
    r".*\.honor_(ecc|cipher)_order": "which of two safe curves or suites is chosen",
    r".*\.log_(alert|level)": "what is logged",
    r"(management|prometheus)\.ssl\.(backlog|compress|max_.*|.*_timeout)": "resources of a listener, which has bounds of its own",
    r"ssl_options\.bypass_pem_cache": "there is no such cache",
    r"auth_cache\.cache_module": "where remembered decisions are kept",
    r"auth_(http|ldap)\.ssl_options\.hostname_verification": "the name of the host is always verified",
    r"auth_(http|ldap)\.ssl_options\.(fail_if_no_peer_cert|reuse_sessions)": "of a server, or speed",
    r"auth_oauth2\.(authorization|token|end_session)_endpoint": "addresses are found by the OpenID configuration",
    r"auth_http\.authorization_failure_disclosure": "it would tell more",
    r"auth_ldap\.idle_timeout": "connections are not kept",
    r"http_dispatch\.access_log_dir": "what is logged",
    r"management\.cors\..*": "other origins are always refused",
    r"management\.(csp|headers)\..*": "the page's own headers allow less",
    r"management\.credential_encryption_secret": "the page keeps no credentials in the browser",
    r"management\.(definitions\.require_json_extension|disable_stats|http\.hide_allow_header)": "no access depends on it",
    r"management\.(oauth_.*)": "the page has one provider and these parameters have no counterpart: fewer ways to log in",
    r"management\.require_auth_for_api_reference": "the reference is public",
    r"management\.restrictions\.quorum_queue_replica_operations\.disabled": "there are no such operations",
}
"""The keys that only cause a warning, and why nobody is less protected."""


def instance(name: str) -> str:
    """Return a key with names that an administrator may have chosen."""
    return re.sub(r"\$\w+", "1", name)


def outcome(name: str) -> str:
    written = instance(name)
    first = Setting("management.listener.ssl", "true", "")
    if written == first.key:
        return "obeyed"
    key = renamed([first, Setting(written, "x", "")], [])[0].key
    if KeyTable().find(key):
        return "obeyed"
    row = foreign_key(key)
    return "unknown" if row is None else "refused" if row.refused else "warning"


@pytest.mark.parametrize(("version", "count"), [("3.13", 960), ("4.3", 1117)])
def test_every_key_of_rabbitmq_is_known(version, count):
    """Each key of the schemas is obeyed, or has a row with the reason why it is not."""
    names = [name for name, words in KEYS.items() if version in words]
    found = {name: outcome(name) for name in names}

    assert [] == [name for name, what in found.items() if what == "unknown"]
    assert [] == [
        name for name, what in found.items() if what != "obeyed" and not foreign_key(instance(name)).why
    ]
    assert count == len(names)


@pytest.mark.parametrize("name", KEYS)
def test_every_key_of_rabbitmq_is_judged(name):
    """A file with the key starts, or the error or the warning names it: none is ignored without a word."""
    key = instance(name)
    draft = Draft([], [])
    for each in renamed([Setting(key, "strange", "here")], draft.problems):
        draft.add(each)
    words = [*draft.problems, *draft.warnings]

    assert outcome(name) == "obeyed" or any(key.rpartition(".")[2] in text for text in words)
    assert not any("unknown key" in text for text in words)


def test_no_key_that_protects_is_only_a_warning():
    """A key that protects is obeyed or stops the start; one that does not is listed with the reason."""
    found = {name: outcome(name) for name in NAMES}
    ignored = [name for name, what in found.items() if what == "warning"]

    assert {"obeyed", "refused", "warning"} == set(found.values())
    assert [] == [name for name in ignored if not any(re.fullmatch(pattern, name) for pattern in HARMLESS)]


def test_every_reason_is_of_a_key_that_is_ignored():
    """No reason is left over, and none excuses a key that has come to be obeyed or refused only in part."""
    ignored = [name for name in NAMES if outcome(name) == "warning"]

    assert [] == [pattern for pattern in HARMLESS if not any(re.fullmatch(pattern, name) for name in ignored)]


def settings_of(**options):
    return [f"management.listener.{key.replace('__', '.')}={value}" for key, value in options.items()]


def test_older_names_of_the_management_listener_are_obeyed(tmp_path):
    """`management.listener.*` sets the port, the address and TLS of the management API, as in RabbitMQ."""
    plain = load(settings=settings_of(port=1234, ip="10.0.0.1")).management
    assert ("10.0.0.1", 1234, None) == (plain.host, plain.port, plain.tls)
    assert 1234 == load(settings=settings_of(port=1234, ssl="false")).management.port

    files = {"ssl_opts__certfile": "/c.pem", "ssl_opts__keyfile": "/k.pem", "ssl_opts__cacertfile": "/ca.pem"}
    more = {"ssl_opts__verify": "verify_peer", "ssl_opts__fail_if_no_peer_cert": "true"}
    tls = load(settings=settings_of(ssl="true", port=15671, ip="10.0.0.1", **files, **more)).management
    assert (False, "10.0.0.1", 15671) == (tls.has_plain, tls.tls.host, tls.tls.port)
    options = tls.tls.options
    assert ("/c.pem", "/k.pem", "/ca.pem") == tuple(
        map(str, (options.certfile, options.keyfile, options.cacertfile))
    )
    assert ("verify_peer", True) == (options.verify, options.fail_if_no_peer_cert)
    assert 15672 == load(settings=settings_of(ssl="true", **files)).management.tls.port
    both = load(settings=[*settings_of(ssl="true", **files), "management.tcp.port=15680"]).management
    assert (True, 15680, 15672) == (both.has_plain, both.port, both.tls.port)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (settings_of(ssl_opts__cacertfile="/ca.pem"), "has no effect without management.listener.ssl = true"),
        (settings_of(ssl="maybe"), "management.listener.ssl"),
        (
            [*settings_of(port=1), "management.tcp.port=2"],
            "management.listener.port and management.tcp.port are of the same listener: remove one of them",
        ),
        (settings_of(ssl="true", ssl_opts__psk_identity="x"), "management.ssl.psk_identity is not supported"),
        (settings_of(ssl="true", ssl_opts__cacerts__1="x"), "management.ssl.cacerts.1 is not supported"),
        (["management.restrictions.operator_policy_changes.disabled=true"], "operator policies"),
        (["amqp_client.ssl_options.verify=verify_peer"], "in its URIs"),
        (["auth_http.ssl_options.depth=1"], "is not supported"),
    ],
)
def test_a_listener_is_not_less_protected_than_it_says(settings, text):
    """A key that cannot be obeyed stops the start with the reason."""
    with pytest.raises(ConfigError) as caught:
        load(settings=settings)

    assert any(text in problem for problem in caught.value.problems), caught.value.problems


def test_what_asks_for_nothing_is_taken():
    """Values that do not protect are accepted without a word."""
    config = load(
        settings=[
            "management.restrictions.operator_policy_changes.disabled=false",
            "management.restrictions.quorum_queue_replica_operations.disabled=true",
            "management.listener.ssl_opts=none",
            "management.listener.ssl=false",
            "management.tcp.port=1234",
            "management.headers.frame_options=DENY",
        ]
    )

    assert () == config.warnings
