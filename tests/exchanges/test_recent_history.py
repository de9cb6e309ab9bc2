"""The recent history exchange routes as a fanout, and says how many messages are kept."""

import pytest

from leveret.exchanges.errors import InvalidArgumentError
from leveret.exchanges.router import Router


def test_it_is_a_fanout():
    """Every queue gets each message, once, whatever its bindings and the routing key are."""
    router = Router()
    exchange = router.declare("x", "x-recent-history")
    for destination, key in (("a", ""), ("a", "k"), ("b", "l")):
        router.bind("x", destination, key)
    assert {"a", "b"} == set(router.route(exchange, ("any",)))
    assert 2 == len(router.route(exchange, ("k", "l")))


@pytest.mark.parametrize(
    ("argument", "length"),
    [(None, 20), (("signedint", 3), 3), (("byte", 1), 1), (("long", 2**40), 2**40)],
)
def test_length(argument, length):
    """The argument is the number of messages that are kept, 20 without it."""
    arguments = {} if argument is None else {"x-recent-history-length": argument}
    assert length == Router().declare("x", "x-recent-history", arguments=arguments).length


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        (("signedint", 0), "0"),
        (("signedint", -1), "-1"),
        (("longstr", "5"), '<<"5">>'),
        (("bool", True), "true"),
        (("void", None), "undefined"),
        (("double", 1.5), "1.5"),
        (("unsignedint", 5), "5"),
        (("array", [("longstr", "a")]), '[{longstr,<<"a">>}]'),
        (("table", {"a": ("signedint", 1)}), '[{<<"a">>,signedint,1}]'),
    ],
)
def test_invalid_length(argument, shown):
    """Anything but a positive signed integer is refused, with RabbitMQ's text."""
    with pytest.raises(InvalidArgumentError) as caught:
        Router().declare("x", "x-recent-history", arguments={"x-recent-history-length": argument})
    expected = f"Invalid argument {shown}, 'x-recent-history-length' must be a positive integer"
    assert expected == str(caught.value)
