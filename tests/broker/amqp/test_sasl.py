import contextlib

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp import sasl, tables
from leveret.broker.amqp.errors import MalformedResponse, UnknownMechanism

no_nul = st.binary(max_size=30).map(
    lambda octets: octets.replace(b"\0", b"").decode("utf-8", "surrogateescape")
)


def amqplain_response(fields):
    return tables.encode_table(fields)[4:].decode("utf-8", "surrogateescape")


@given(no_nul, no_nul)
def test_plain(user, password):
    """PLAIN is NUL, user, NUL, password, whatever their octets."""
    read_user, read_password = sasl.plain(f"\0{user}\0{password}")
    assert user == read_user
    assert password.encode("utf-8", "surrogateescape") == read_password.octets()


@pytest.mark.parametrize(
    "response", ["", "guest", "\0guest", "\0a\0b\0c", "id\0guest\0guest", "\0guest\0guest\0"]
)
def test_malformed_plain(response):
    """Anything else is malformed, and the text does not show the response."""
    with pytest.raises(MalformedResponse) as caught:
        sasl.plain(response)
    assert str(caught.value) == "response <<...>> invalid"


def test_amqplain():
    """AMQPLAIN is a table without length, with LOGIN and PASSWORD."""
    response = amqplain_response(
        {"LOGIN": ("longstr", "guest"), "PASSWORD": ("longstr", "secret"), "x": ("void", None)}
    )
    user, password = sasl.amqplain(response)
    assert (user, password.octets()) == ("guest", b"secret")
    assert "secret" not in repr(password)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("\x05LOGINS", "invalid"),
        (amqplain_response({"LOGIN": ("longstr", "secret")}), "is missing LOGIN or PASSWORD field"),
        (amqplain_response({"LOGIN": ("longstr", "u"), "PASSWORD": ("byte", 1)}), "uses unsupported type"),
    ],
)
def test_malformed_amqplain(response, text):
    """Missing fields and wrong types are refused with RabbitMQ's text, without the table."""
    with pytest.raises(MalformedResponse, match=text) as caught:
        sasl.amqplain(response)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=100))
def test_amqplain_raises_nothing_else(response):
    """Arbitrary text is credentials or a MalformedResponse."""
    with contextlib.suppress(MalformedResponse):
        sasl.amqplain(response)


def test_mechanisms():
    """The offer lists the known and enabled mechanisms; others are unknown or invalid, as in RabbitMQ."""
    assert sasl.mechanisms() == "PLAIN AMQPLAIN"
    assert sasl.mechanisms(["AMQPLAIN", "EXTERNAL"]) == "AMQPLAIN"
    assert sasl.read_response("PLAIN", "\0u\0p")[0] == "u"
    with pytest.raises(UnknownMechanism, match="unknown authentication mechanism 'X'"):
        sasl.read_response("X", "")
    with pytest.raises(UnknownMechanism, match="invalid authentication mechanism 'PLAIN'"):
        sasl.read_response("PLAIN", "", ["AMQPLAIN"])
