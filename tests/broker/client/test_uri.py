"""AMQP URIs of the load tool. No sockets."""

import pytest

from leveret.broker.client.options import TLS
from leveret.broker.client.uri import (
    HEARTBEAT,
    Address,
    MalformedUriError,
    UriError,
    endpoint_of,
    parse,
    without_secrets,
)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("amqp://", Address()),
        ("amqp://localhost", Address(host="localhost")),
        ("amqp://localhost/", Address(host="localhost")),
        ("amqp://localhost//", Address(host="localhost")),
        ("AMQP://localhost:5673/%2f", Address(host="localhost", port=5673)),
        ("amqps://localhost", Address(host="localhost", port=5671, is_tls=True)),
        ("amqps://localhost:5673/v", Address(host="localhost", port=5673, vhost="v", is_tls=True)),
        ("amqp://u@h/v", Address("h", 5672, "u", "guest", "v")),
        ("amqp://u:@h/v", Address("h", 5672, "u", "", "v")),
        ("amqp://a%40b:%2F%3A%25%c3%a9@h/x%2Fy", Address("h", 5672, "a@b", "/:%é", "x/y")),
        ("amqp://a+b:c+d@h/e+f", Address("h", 5672, "a+b", "c+d", "e+f")),
        ("amqp://[::1]:5673/v?heartbeat=5", Address("::1", 5673, vhost="v")),
    ],
)
def test_parts_are_decoded(uri, expected):
    """Each part is percent-decoded, and a part that is absent has RabbitMQ's default."""
    assert expected == parse(uri)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("localhost:5672", "must begin with amqp://"),
        ("http://localhost", "must begin with amqp://"),
        ("amqp:localhost", "must begin with amqp://"),
        ("amqps:localhost", "must begin with amqp://"),
        ("", "must begin with amqp://"),
        ("amqp://h:many", "port"),
        ("amqp://h:70000", "port"),
        ("amqp://h:0", "port"),
        ("amqp://u:hush:5672", "port"),
        ("amqp://[::1", "brackets"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://u:hu#sh@h/", "%23"),
        ("amqp://%ff@h", "user name in the URI is not UTF-8"),
    ],
)
def test_other_uris_are_refused_with_a_reason(uri, reason):
    """A URI that is not valid is refused with a reason, which does not quote a password."""
    with pytest.raises(UriError) as refused:
        parse(uri)

    assert reason in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "address", [Address(), Address("::1", 1, "a@b", "secret", "x/y"), Address("h", 2, "", "secret", "é")]
)
def test_the_text_of_an_address_is_its_uri_without_the_password(address):
    """The text parses to the same address but for the password, which neither it nor the repr contains."""
    again = parse(str(address))

    assert (address.host, address.port, address.user, address.vhost) == (
        again.host,
        again.port,
        again.user,
        again.vhost,
    )
    assert "secret" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    ("uri", "address", "shown"),
    [
        ("amqp://h", Address("h", 5672, "guest", "guest", "/"), "amqp://h"),
        ("amqps://h", Address("h", 5671, "guest", "guest", "/"), "amqps://h"),
        ("amqp://u:p%40@h:1/%2fv?heartbeat=5", Address("h", 1, "u", "p@", "/v"), "amqp://h:1/%2fv"),
        ("AMQP://u@h/", Address("h", 5672, "u", "guest", ""), "AMQP://h/"),
        ("amqp://[::1]:7/v", Address("::1", 7, "guest", "guest", "v"), "amqp://::1:7/v"),
    ],
)
def test_a_uri_names_a_broker(uri, address, shown):
    """The form that is shown has no login and no query."""
    endpoint = endpoint_of(uri)

    assert (address, shown) == (endpoint.address, endpoint.shown)


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("amqp://", ("/", None, None)),
        ("amqp:///v", ("v", None, None)),
        ("amqp:///%2F", ("/", None, None)),
        ("amqp://u@/v", ("v", "u", None)),
        ("amqp://u:p@/v", ("v", "u", "p")),
    ],
)
def test_without_a_host_it_is_the_broker_itself(uri, found):
    """With a user or without."""
    endpoint = endpoint_of(uri)

    assert endpoint.address is None
    assert found == (endpoint.vhost, endpoint.user, endpoint.password)


def test_options():
    """Those of the query, and RabbitMQ's defaults."""
    assert (HEARTBEAT, 60.0, ("PLAIN", "AMQPLAIN")) == (
        (options := endpoint_of("amqp://h").options).heartbeat,
        options.seconds,
        options.mechanisms,
    )
    options = endpoint_of(
        "amqp://h?heartbeat=7&connection_timeout=1500&channel_max=9&frame_max=8192&auth_mechanism=amqplain"
    ).options
    assert (7, 1.5, 9, 8192, ("AMQPLAIN",)) == (
        options.heartbeat,
        options.seconds,
        options.channel_max,
        options.frame_max,
        options.mechanisms,
    )


def test_tls_options():
    """The broker is verified unless the URI says that it is not."""
    assert TLS() == endpoint_of("amqps://h").options.tls
    assert TLS("/a b", "/c", "/k", "pw", is_verified=False, server_name=None) == (
        endpoint_of(
            "amqps://h?cacertfile=/a%20b&certfile=/c&keyfile=/k&password=pw&verify=verify_none"
            "&server_name_indication=disable"
        ).options.tls
    )
    assert "name" == endpoint_of("amqps://h?server_name_indication=name").options.tls.server_name


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("foo", '{{unable_to_parse_uri,no_scheme},"foo"}'),
        ("", "{{unable_to_parse_uri,no_scheme},[]}"),
        ("http://x", '{{unexpected_uri_scheme,"http"},"http://x"}'),
        ("amqp://h:0", '{{port_out_of_range,0},"amqp://h:0"}'),
        ("amqp://h/a/b", '{{invalid_vhost,"a/b"},"amqp://h/a/b"}'),
        ("amqp://:5", '{port_requires_host,"amqp://:5"}'),
        (
            "amqp://h?heartbeat=x",
            (
                '{{invalid_amqp_params_parameter,heartbeat,"x",[{"heartbeat","x"}],{not_an_integer,"x"}},'
                '"amqp://h?heartbeat=x"}'
            ),
        ),
        (
            "amqp://h?host=x",
            (
                '{{invalid_amqp_params_parameter,host,"x",[{"host","x"}],'
                '{parameter_unconfigurable_in_query,host,"x"}},"amqp://h?host=x"}'
            ),
        ),
        ("amqp://h/%4", "{{unterminated_entity,['%',52]},\"amqp://h/%4\"}"),
        ("amqp://h/%zz", "{{invalid_entitiy,['%',122,122]},\"amqp://h/%zz\"}"),
    ],
)
def test_a_fault_is_told_as_rabbitmq_does(uri, fault):
    """As an Erlang term, without its line breaks."""
    with pytest.raises(MalformedUriError) as raised:
        endpoint_of(uri)

    assert fault == str(raised.value)


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://h:x",
        "amqp://h:" + "9" * 5000,
        "amqp://h:",
        "amqps://",
        "amqps://h?verify=x",
        "amqps://h?depth=x",
        "amqps://h?fail_if_no_peer_cert=x",
        "amqp://h?auth_mechanism=x",
        "amqp://u:secret@h:0/?password=secret",
        "amqp://u:secret@h/a/b/c",
        "amqps://u:secret@h?password=secret&depth=x",
        "amqp://u:p/secret@h",
        "amqp://u:1/secret/x@h",
        "amqp://u:p@secret@h:0",
        "amqp://u:p?secret@h",
        "amqps://u:p@h?password=p@secret&depth=x",
        "u:secret@h",
        "secret@h",
    ],
)
def test_a_fault_contains_no_password(uri):
    """Neither that of the login nor that of the key file; nothing but a fault is ever raised."""
    with pytest.raises(MalformedUriError) as raised:
        endpoint_of(uri)

    assert "secret" not in str(raised.value)


def test_a_password_may_have_an_at_sign():
    """The host begins after the last one: a name of a host has none, and what is shown nothing of the password."""
    endpoint = endpoint_of("amqp://u:p@ss@h/v")
    assert ("p@ss", "amqp://h/v") == (endpoint.password, endpoint.shown)


def test_secrets_are_taken_out_of_a_text():
    """All of them."""
    assert "a amqp://h/v b amqps://i?password=***&x=1" == without_secrets(
        "a amqp://u:p@h/v b amqps://u@i?password=p&x=1"
    )
