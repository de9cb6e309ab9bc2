"""Properties of a publish that affect its route."""

import pytest

from leveret.broker.amqp.properties import REPLY_TO, build
from leveret.broker.errors import AMQPError
from leveret.broker.vhost.publish_route import PERSISTENT, PERSISTENT_REQUEST, REQUEST, inspect


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delivery_mode": 1, "priority": 5, "content_type": "text/plain"},
        {"delivery_mode": 0},
        {"delivery_mode": 3},
        {"message_id": "x", "app_id": "y"},
    ],
)
def test_most_properties_ask_nothing(properties):
    """Properties that only the consumer reads do not affect the route."""
    assert inspect(build(0, **properties)) is None


@pytest.mark.parametrize("more", [{}, {"priority": 5, "content_type": "text/plain", "timestamp": 1}])
def test_to_be_kept_is_all_that_most_persistent_messages_ask(more):
    """Delivery mode 2 without other properties of interest is one shared `PropertyDemands`, which leaves a route plain."""
    demands = inspect(build(0, delivery_mode=2, **more))

    assert PERSISTENT is demands
    assert (True, True, (), {}) == (
        demands.persistent,
        demands.plain_route,
        demands.extra_keys,
        demands.headers,
    )
    demands.validate("me", impersonator=False)


@pytest.mark.parametrize(("mode", "persistent"), [(None, False), (1, False), (2, True), (3, False)])
def test_what_asks_for_more_may_ask_to_be_kept_too(mode, persistent):
    """The delivery mode is read together with headers and the other properties."""
    demands = inspect(build(0, delivery_mode=mode, headers={"x": ("bool", True)}))

    assert demands is not None
    assert persistent == demands.persistent


@pytest.mark.parametrize(
    "more", [{}, {"correlation_id": "1", "priority": 5, "message_id": "x", "app_id": "y"}]
)
def test_requests_share_what_they_ask_for(more):
    """Direct reply-to alone is one of two shared objects, by the delivery mode; it is not a plain route."""
    assert REQUEST is inspect(build(0, reply_to=REPLY_TO, **more))
    assert PERSISTENT_REQUEST is inspect(build(0, reply_to=REPLY_TO, delivery_mode=2, **more))
    assert [(True, False, False), (True, True, False)] == [
        (each.reply_to, each.persistent, each.plain_route) for each in (REQUEST, PERSISTENT_REQUEST)
    ]


@pytest.mark.parametrize(
    "properties",
    [
        {"reply_to": "replies"},
        {"reply_to": REPLY_TO + "x"},
        {"reply_to": REPLY_TO[1:]},
        {"reply_to": "replies", "correlation_id": REPLY_TO},
        {"reply_to": "replies", "app_id": REPLY_TO},
    ],
)
def test_other_addresses_for_replies_ask_nothing(properties):
    """A reply address is of interest to consumers only, also if the name of direct reply-to is elsewhere in the list."""
    assert inspect(build(0, **properties)) is None
    assert PERSISTENT is inspect(build(0, delivery_mode=2, **properties))


def test_a_malformed_list_with_a_reply_address_is_refused():
    """A list whose reply address ends behind it, or that has more behind it, is an internal error, as in RabbitMQ."""
    payload = build(0, reply_to=REPLY_TO)
    for damaged in (payload[:-1], payload + b"x"):
        with pytest.raises(AMQPError, match="INTERNAL_ERROR"):
            inspect(damaged)


def test_headers_matter_to_headers_exchanges_only():
    """Headers without CC and BCC and another reply address leave a route plain, an expiration does not."""
    demands = inspect(build(0, headers={"x": ("bool", True)}, reply_to="mine"))

    assert demands is not None
    assert demands.plain_route
    assert {"x": ("bool", True)} == demands.headers


@pytest.mark.parametrize(
    "properties",
    [
        {"headers": {"CC": ("array", [("longstr", "a")])}},
        {"headers": {"BCC": ("array", [])}},
        {"expiration": "soon"},
        {"user_id": "me"},
        {"reply_to": REPLY_TO},
    ],
)
def test_some_properties_ask_for_something(properties):
    """Copies, checks and direct replies take a publish off the plain route."""
    demands = inspect(build(0, **properties))

    assert demands is not None
    assert not demands.plain_route


def test_copies_are_for_keys_that_are_texts():
    """CC and BCC keys count if they are strings; a value that is not a list is an error."""
    keys = ("array", [("longstr", "a"), ("signedint", 1), ("longstr", "b")])
    demands = inspect(build(0, headers={"CC": keys, "BCC": ("array", [("longstr", "c")])}))
    assert demands is not None
    assert (("a", "b", "c"), True) == (demands.extra_keys, demands.has_bcc)

    demands = inspect(build(0, headers={"CC": ("void", None)}))
    assert demands is not None
    with pytest.raises(AMQPError, match="unacceptable_type_in_header"):
        demands.validate("me", impersonator=False)


def test_a_user_id_is_that_of_the_user():
    """Another user's id is 406 unless the user may impersonate, checked before everything else; an own one is plain."""
    demands = inspect(build(0, user_id="other", expiration="soon"))
    assert demands is not None

    with pytest.raises(AMQPError, match="user_id property set to 'other' but authenticated user was 'me'"):
        demands.validate("me", impersonator=False)
    with pytest.raises(AMQPError, match="invalid expiration 'soon'"):
        demands.validate("me", impersonator=True)
    own = inspect(build(0, user_id="me", delivery_mode=2), "me")
    assert own is not None
    assert (True, True) == (own.plain_route, own.persistent)


def test_properties_that_nobody_could_read():
    """A property list that does not fit its flags is 541, as in RabbitMQ."""
    with pytest.raises(AMQPError, match="541"):
        inspect(build(0, content_type="text")[:-1])
