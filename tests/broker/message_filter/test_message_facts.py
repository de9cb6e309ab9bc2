"""Facts about a message: what conditions see of it."""

from leveret.broker.amqp.properties import build
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.message_filter.message_filter import MessageFilter
from leveret.storage.message import Message

DEATHS = (
    "array",
    [("table", {"queue": ("longstr", "orders"), "reason": ("longstr", "rejected")}), ("long", 1)],
)


def message(header: bytes) -> Message:
    """Return a message with a content header and the body `abc`."""
    frames = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
    return Message(b"\x04shop\x05a.\xffbc", frames + b"\x03\x00\x01\x00\x00\x00\x03abc\xce", 1)


def test_facts_of_a_message():
    """Properties, headers, address, size and newest death are those of its frames."""
    header = build(3, type="order", priority=4, headers={"x-death": DEATHS, "n": ("long", 7)})
    facts = MessageFacts(message(header), redelivered=True, held=5)

    assert {"type": "order", "priority": 4} == facts.properties
    assert 7 == facts.headers["n"]
    assert ("shop", "a.\udcffbc", 3) == (facts.exchange, facts.routing_key, facts.size)
    assert {"queue": "orders", "reason": "rejected"} == facts.death
    assert MessageFilter(
        'redelivered and age == 5 and headers.n == 7 and death.queue == "orders" and exchange == "shop"'
    ).matches(facts)


def test_a_message_without_properties_has_none():
    """No properties, no headers, no death; also if they cannot be decoded."""
    for header in (build(3), build(3)[:12] + b"\x80\x00"):
        facts = MessageFacts(message(header))

        assert ({}, {}, None) == (facts.headers, facts.properties, facts.death)


def test_headers_are_decoded_when_a_condition_asks_for_them():
    """A condition on the size or the routing key decodes no properties."""
    facts = MessageFacts(message(build(3, headers={"n": ("long", 7)})))

    assert MessageFilter('size == 3 and routing_key =~ "^a"').matches(facts)
    assert facts._properties is None


def test_the_age_of_a_dead_letter():
    """The time of its only death is known exactly; the queue knows the least age of any message."""

    def facts(count: int, *, held: float | None) -> MessageFacts:
        death = ("table", {"count": ("long", count), "time": ("timestamp", 900)})
        header = build(3, headers={"x-death": ("array", [death])})
        return MessageFacts(message(header), held=held, now=1_000_000)

    assert [100, 100, 300] == [facts(1, held=held).age for held in (None, 5, 300)]
    assert [None, 5] == [facts(2, held=held).age for held in (None, 5)]
    assert 7 == MessageFacts(message(build(3)), held=7, now=1_000_000).age
