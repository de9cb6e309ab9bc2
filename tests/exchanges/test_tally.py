"""An exchange counts the messages that it has passed on."""

from leveret.exchanges.base import MOST_COUNTED_KEYS
from leveret.exchanges.direct import DirectExchange
from leveret.exchanges.topic import TopicExchange


def test_an_exchange_adds_up_its_tallies():
    """Messages, copies and those without a queue follow from how many queues each message reached."""
    exchange = DirectExchange("e")
    exchange.tally(3, "a").published += 10
    exchange.tally(1, "b").published += 5
    exchange.tally(0, "c").published += 2

    assert (17, 35, 2) == (exchange.published_in, exchange.published_out, exchange.unroutable)


def test_a_tally_is_found_again():
    """Routes of the same width share a tally for all keys, where keys are not counted apart."""
    exchange = DirectExchange("e")

    assert exchange.tally(1, "a") is exchange.tally(1, "b")
    assert exchange.tally(1, "a") is not exchange.tally(2, "a")
    assert exchange.tally(1, "a").routing_key is None


def test_exchanges_share_no_tallies():
    """An exchange without messages owns no table, and none sees another's."""
    one, other = DirectExchange("one"), DirectExchange("other")
    one.tally(1, "a").published += 1

    assert (1, 0) == (one.published_in, other.published_in)


def test_topic_exchanges_tell_keys_apart_up_to_a_limit():
    """Each of the first keys has a tally, those that come later share one; nothing is counted twice."""
    exchange = TopicExchange("e")
    for number in range(MOST_COUNTED_KEYS + 10):
        exchange.tally(1, str(number)).published += 1

    assert "0" == exchange.tally(1, "0").routing_key
    assert exchange.tally(1, "new").routing_key is None
    assert 10 == exchange.tally(1, "new").published
    assert MOST_COUNTED_KEYS + 10 == exchange.published_in


def test_keys_need_not_be_distinguished_any_longer():
    """Messages counted by keys that are tracked no longer stay counted, and the keys' places are free for others."""
    exchange = TopicExchange("e")
    for number in range(MOST_COUNTED_KEYS + 10):
        exchange.tally(number % 2, str(number)).published += 1
    given_up = [exchange.tally(number % 2, str(number)) for number in range(100)]
    exchange.stop_counting_keys(given_up)

    assert MOST_COUNTED_KEYS + 10 == exchange.published_in
    assert MOST_COUNTED_KEYS // 2 + 5 == exchange.unroutable == exchange.published_out
    assert "new" == exchange.tally(1, "new").routing_key


def test_a_message_that_arrives_meanwhile_is_counted():
    """A tally found before it was given up may still be counted on."""
    exchange = TopicExchange("e")
    found = exchange.tally(1, "a")
    found.published += 1
    exchange.stop_counting_keys([found])
    found.published += 1
    seen = exchange.published_in, exchange.published_out
    exchange.stop_counting_keys([])

    assert (2, 2) == seen == (exchange.published_in, exchange.published_out)
    assert 2 == exchange.tallies[1, None].published


def test_bindings_are_counted():
    """Every binding counts, also several to one destination."""
    exchange = TopicExchange("e")
    exchange.bind("q", "a")
    exchange.bind("q", "b")
    exchange.bind("r", "a")

    assert 3 == exchange.binding_count


def test_binding_keys_are_reported_by_destination():
    """Each binding's key once, those with arguments too, and none for what is not bound."""
    exchange = TopicExchange("e")
    exchange.bind("q", "a")
    exchange.bind("q", "b", {"x": ("longstr", "y")})
    exchange.bind("r", "c")

    assert [["a", "b"], ["c"], []] == [exchange.binding_keys_to(name) for name in ("q", "r", "s")]
