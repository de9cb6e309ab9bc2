"""AMQP URIs of the load tool. No sockets."""

import pytest

from leveret.broker.client.uri import Address, UriError, parse


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
