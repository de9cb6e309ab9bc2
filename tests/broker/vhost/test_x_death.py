"""Headers of dead letters, compared with a model of RabbitMQ's, and cycles."""

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames, reframe
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.amqp.tables import encode_table
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.vhost.dead_lettering import MOST_DEATHS, Cycles, _since_reject, dead_letter
from leveret.storage.message import Message

NOW = 1_700_000_000
REASONS = ("expired", "rejected", "maxlen", "delivery_limit")


def message(body=b"body", exchange="x", key="k", number=3, frame_max=0, **properties):
    header = build(len(body), **properties)
    address = bytes((len(exchange.encode()),)) + exchange.encode()
    address += bytes((len(key.encode()),)) + key.encode()
    return Message(address, content_frames(number, frame_max, header, body), number)


def die(source, queue="q", reason="expired", exchange="dlx", routing_key=None, now=NOW, **more):
    letter, rewritten = dead_letter(
        source, queue=queue, reason=reason, exchange=exchange, routing_key=routing_key, now=now, **more
    )
    names = ("address", "routing_keys", "deaths")
    shared = {name: getattr(rewritten, name) for name in names}
    return SimpleNamespace(message=letter, rewritten=rewritten, headers=rewritten.headers(), **shared)


def letter_of(letter):
    return letter.message


def published(letter, number=3):
    """Return a message that a client publishes with the headers of a dead letter that it got."""
    content = reframe(letter.message.content, number, 0)
    return Message(letter.address, content, number)


def read(letter):
    return Properties(letter_of(letter).header)


def deaths(letter):
    """Return the deaths in the encoded header, as plain dictionaries."""
    plain = []
    for kind, table in read(letter).headers["x-death"][1]:
        assert kind == "table"
        death = {name: value for name, (_, value) in table.items()}
        plain.append(death | {"routing-keys": [key for _, key in death["routing-keys"]]})
    return plain


def array(*values):
    return "array", [("longstr", value) for value in values]


def entry(name="q", **changes):
    """Return an entry of x-death for the queue of that name, as a client writes it."""
    fields = {
        "count": ("signedint", 4),
        "reason": ("longstr", "expired"),
        "queue": ("longstr", name),
        "time": ("timestamp", 77),
        "exchange": ("longstr", "old"),
        "routing-keys": array("old.key"),
        **changes,
    }
    return "table", {name: field for name, field in fields.items() if field is not None}


def test_copies_that_are_kept_count_no_more():
    """In RabbitMQ 4.3 the header CC survives a dead-letter routing key, and routes no later death."""
    rules = {"compatibility": QueueCompatibility(message_properties="4.3")}
    source = message(headers={"CC": array("a")})
    second = die(letter_of(die(source, **rules)), queue="q2", routing_key="rk", **rules)
    third = die(letter_of(second), queue="q3", **rules)
    fourth = die(letter_of(third), queue="q4", **rules)

    assert [array("a")] * 3 == [letter.headers["CC"] for letter in (second, third, fourth)]
    assert [("rk",)] * 3 == [letter.routing_keys for letter in (second, third, fourth)]
    assert [["rk"], ["rk"], ["k", "a"], ["k", "a"]] == [death["routing-keys"] for death in deaths(fourth)]


def test_names_that_are_no_text():
    """Names that are not UTF-8 are kept unchanged."""
    source = message()
    source.address = b"\x01\xff\x02\xfe\xfd"

    letter = die(source)

    assert b"\x03dlx\x02\xfe\xfd" == letter.address
    assert [("\udcff", ["\udcfe\udcfd"])] == [(d["exchange"], d["routing-keys"]) for d in deaths(letter)]


def test_history_sent_by_a_client():
    """Entries sent by a client are counted on, with their proper types; the first death is the client's."""
    headers = {
        "x-death": ("array", [entry("other", time=("long", 5)), entry(more=("bool", True))]),
        "x-first-death-queue": ("longstr", "mine"),
    }

    letter = die(message(headers=headers))

    assert [("q", 5, 77, "old"), ("other", 4, 5, "old")] == [
        (d["queue"], d["count"], d["time"], d["exchange"]) for d in deaths(letter)
    ]
    assert {"long"} == {table["count"][0] for _, table in letter.headers["x-death"][1]}
    assert {"timestamp"} == {table["time"][0] for _, table in letter.headers["x-death"][1]}
    assert "more" not in letter.headers["x-death"][1][0][1]
    assert ("longstr", "mine") == letter.headers["x-first-death-queue"]
    assert "x-first-death-reason" not in letter.headers


@pytest.mark.parametrize(
    "bad",
    [
        ("longstr", "text"),
        ("array", []),
        ("table", {}),
        entry(count=None),
        entry(count=("longstr", "1")),
        entry(count=("signedint", -1)),
        entry(count=("long", 2**63 - 1)),
        entry(time=None),
        entry(time=("long", -1)),
        entry(time=("double", 1.0)),
        entry(reason=None),
        entry(queue=("binary", b"q")),
        entry(exchange=None),
        ("table", {**entry()[1], "routing-keys": ("longstr", "k")}),
    ],
)
def test_incomplete_entries_are_ignored(bad):
    """An invalid entry is dropped from the array, but the array still counts as a history."""
    letter = die(message(headers={"x-death": ("array", [bad, entry("other")])}))

    assert ["q", "other"] == [death["queue"] for death in deaths(letter)]
    assert "x-first-death-queue" not in letter.headers


def test_parts_of_an_entry_are_ignored():
    """Routing keys that are not strings and an invalid expiration are left out of an entry."""
    keys = ("array", [("bool", True), ("longstr", "k")])
    item = entry("other", **{"routing-keys": keys, "original-expiration": ("long", 5)})

    letter = die(message(headers={"x-death": ("array", [item])}))

    assert ["k"] == deaths(letter)[1]["routing-keys"]
    assert "original-expiration" not in deaths(letter)[1]


def test_empty_history():
    """An empty array is a history without a known first death."""
    letter = die(message(headers={"x-death": ("array", [])}))

    assert [("q", 1)] == [(death["queue"], death["count"]) for death in deaths(letter)]
    assert "x-first-death-queue" not in letter.headers
    assert ("longstr", "q") == letter.headers["x-last-death-queue"]


def test_more_entries_than_a_client_may_send():
    """Headers that exceed the limit for clients can still grow."""
    headers = {f"h{number}": ("bool", True) for number in range(4090)}
    letter = die(message(headers=headers))

    again = die(letter_of(letter), "q2")

    assert ["q2", "q"] == [item["queue"][1] for _, item in again.headers["x-death"][1]]
    assert 4090 + 7 == len(again.headers)


@given(st.dictionaries(st.text(max_size=4), st.deferred(lambda: FIELDS), max_size=6))
def test_fields_are_written_as_if_they_had_been_decoded(headers):
    """Headers that are copied without decoding equal those decoded, encoded and sorted."""
    letter = die(message(headers=headers))
    kept = {name: field for name, field in headers.items() if not name.startswith("x-")}
    found = read(letter).headers

    assert encode_table(found) == encode_table(dict(sorted(found.items(), key=lambda each: each[0].encode())))
    assert kept == {name: found[name] for name in kept}


def test_clients_variants_are_written_as_the_brokers():
    """A client's `L` becomes `l`, any true bool 1, and the first of equal field names is kept, in nested tables too."""
    inner = b"\x01nL" + bytes(8) + b"\x01bt\x07" + b"\x01bt\x00"
    array = b"\x01aA" + len(inner[2:11]).to_bytes(4, "big") + inner[2:11]
    table = inner + b"\x01tF" + len(inner).to_bytes(4, "big") + inner + array
    header = bytearray(build(4, headers={}))
    header[14:18] = len(table).to_bytes(4, "big") + table
    source = Message(b"\x01x\x01k", content_frames(3, 0, bytes(header), b"body"), 3)
    written = letter_of(die(source)).header

    assert (
        b"\x01bt\x01\x01nl" + bytes(8) + b"\x01tF\x00\x00\x00\x0f\x01nl" + bytes(8) + b"\x01bt\x01" in written
    )
    assert b"\x01aA\x00\x00\x00\x09l" + bytes(8) in written


def test_the_newest_deaths_are_kept():
    """A dead letter has a limited number of entries: this death and the newest others."""
    history = "array", [entry(f"q{number}") for number in range(10)]
    letter = die(message(headers={"x-death": history}), "here", most_deaths=4)
    again = die(letter_of(letter), "q1", most_deaths=4)

    assert ["here", "q0", "q1", "q2"] == [death["queue"] for death in deaths(letter)]
    assert [("q1", 5), ("here", 1), ("q0", 4), ("q2", 4)] == [
        (death["queue"], death["count"]) for death in deaths(again)
    ]
    assert (("q1", "expired"), ("here", "expired")) == again.deaths[:2]


@pytest.mark.parametrize("frame_max", [0, 9, 12])
def test_body_frames_stay(frame_max):
    """The body's frames and the body size are those of the original; a delivery writes type and channel."""
    source = message(b"some body", frame_max=frame_max, number=513)
    letter = die(source)

    made = published(letter, 513)
    assert (source.body, source.body_size) == (made.body, made.body_size)
    assert source.content[len(source.header) + 8 :] == made.content[len(made.header) + 8 :]
    assert (b"\x02\x02\x01", source.header[:12]) == (made.content[:3], made.header[:12])
    assert (0, b"\x01\x00\x00") == (letter.message.channel_id, letter.message.content[:3])


PROPERTIES = {
    "content_type": st.text(max_size=9),
    "content_encoding": st.text(max_size=9),
    "headers": st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
            st.tuples(st.just("longstr"), st.text(max_size=5)),
            st.tuples(st.just("binary"), st.binary(max_size=5)),
        ),
        max_size=3,
    ),
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 255),
    "correlation_id": st.text(max_size=9),
    "reply_to": st.text(max_size=9),
    "expiration": st.integers(0, 10**9).map(str),
    "message_id": st.text(max_size=9),
    "timestamp": st.integers(0, 2**64 - 1),
    "type": st.text(max_size=9),
    "user_id": st.text(max_size=9),
    "app_id": st.text(max_size=9),
    "cluster_id": st.text(max_size=9),
}


@given(st.fixed_dictionaries({}, optional=PROPERTIES), st.binary(max_size=40), st.sampled_from(REASONS))
def test_everything_else_stays(properties, body, reason):
    """All properties but headers and expiration, all headers of the application and the body stay."""
    letter = die(message(body, **properties), reason=reason)

    before, after = dict(properties), read(letter).present()
    headers = before.pop("headers", {})
    before.pop("expiration", None)
    kept = after.pop("headers")
    assert before == after
    assert headers == {name: field for name, field in kept.items() if name in headers}
    assert body == letter_of(letter).body


class Model:
    """A model of the deaths RabbitMQ keeps: pairs to counts, in order of recency, and the first and last."""

    def __init__(self):
        self.deaths = []
        self.first = self.last = None

    def die(self, queue, reason):
        counts = dict(self.deaths)
        self.last = queue, reason
        self.first = self.first or self.last
        self.deaths = [(self.last, counts.pop(self.last, 0) + 1), *counts.items()]

    def cycling(self, target):
        newest = [pair for pair, _ in self.deaths]
        until = next((at for at, (queue, _) in enumerate(newest) if queue == target), None)
        return until is not None and all(reason != "rejected" for _, reason in newest[: until + 1])


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(REASONS), st.sampled_from([None, "rk"])), min_size=1
    )
)
def test_lives_of_a_message(story):
    """A message that is dead-lettered repeatedly has the model's history and cycles."""
    model = Model()
    source = message()
    for at, (queue, reason, key) in enumerate(story):
        letter = die(source, queue, reason, routing_key=key, now=NOW + at)
        model.die(queue, reason)
        source = letter_of(letter)

    assert model.deaths == [((d["queue"], d["reason"]), d["count"]) for d in deaths(letter)]
    for which, pair in (("first", model.first), ("last", model.last)):
        names = [f"x-{which}-death-{part}" for part in ("queue", "reason")]
        assert pair == tuple(letter.headers[name][1] for name in names)
    assert [model.cycling(name) for name in "abcd"] == [cycles(letter.deaths, name) for name in "abcd"]


def cycles(deaths: list[tuple[str, str]], queue: str) -> bool:
    return queue in _since_reject(deaths)


NAMES = st.sampled_from(
    ["count", "reason", "queue", "time", "exchange", "routing-keys", "original-expiration", "x"]
)
FIELDS = st.recursive(
    st.one_of(
        st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just("timestamp"), st.integers(0, 2**64 - 1)),
        st.tuples(st.just("decimal"), st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1))),
        st.tuples(st.just("double"), st.floats(allow_nan=False, allow_infinity=False)),
        st.tuples(st.just("longstr"), st.text(max_size=3)),
        st.tuples(st.just("bool"), st.booleans()),
        st.just(("void", None)),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("array"), st.lists(inner, max_size=3)),
        st.tuples(st.just("table"), st.dictionaries(NAMES, inner, max_size=8)),
    ),
    max_leaves=12,
)
ENTRIES = st.one_of(
    FIELDS,
    st.builds(
        lambda changes: ("table", entry("other")[1] | changes), st.dictionaries(NAMES, FIELDS, max_size=2)
    ),
)


@given(
    st.one_of(FIELDS, st.tuples(st.just("array"), st.lists(ENTRIES, max_size=3))), st.sampled_from(REASONS)
)
def test_whatever_a_client_sends(history, reason):
    """Any x-death leads to a dead letter whose history begins with this death and contains only deaths."""
    once = die(message(headers={"x-death": history}), "source", reason)
    again = die(letter_of(once), "source", reason)

    for count, letter in enumerate((once, again), 1):
        newest, *others = deaths(letter)
        assert ("source", reason, count) == (newest["queue"], newest["reason"], newest["count"])
        assert all({"count", "time", "queue", "reason", "exchange"} <= set(other) for other in others)
        assert (reason != "rejected") == cycles(letter.deaths, "source")


HISTORIES = st.lists(
    st.one_of(
        ENTRIES,
        st.builds(
            lambda name, reason, count: entry(name, reason=("longstr", reason), count=("long", count)),
            st.sampled_from("abcd"),
            st.sampled_from(REASONS),
            st.sampled_from([0, 1, 7, 2**63 - 3, 2**63 - 2]),
        ),
    ),
    max_size=6,
)
STORY = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(REASONS)), min_size=1, max_size=8)


@given(HISTORIES, STORY, STORY, st.sampled_from([3, 100, MOST_DEATHS]))
def test_clients_data_never_make_a_cycle(history, before, story, most):
    """Whatever deaths a client claims, and whatever it publishes again: a cycle consists of deaths since the publish."""
    source = message(headers={"x-death": ("array", history)})
    for queue, reason in before:
        source = letter_of(die(source, queue, reason, most_deaths=most))
    source = published(die(source, "d", "expired", most_deaths=most))
    assert 0 == source.deaths
    model = Model()
    for queue, reason in story:
        letter = die(source, queue, reason, most_deaths=most)
        model.die(queue, reason)
        del model.deaths[most:]
        source = letter_of(letter)
        expected = [pair for pair, _ in model.deaths]
        assert (expected, len(expected)) == (list(letter.deaths), source.deaths)
        assert [model.cycling(name) for name in "abcd"] == [cycles(letter.deaths, name) for name in "abcd"]


def test_counts_go_on_when_a_client_publishes_a_dead_letter_again():
    """Three publishes with the headers that came count 1, 2, 3, and none of them is in a cycle."""
    source = message()
    for count in (1, 2, 3):
        letter = die(source)
        assert [count] == [death["count"] for death in deaths(letter)]
        assert ((("q", "expired"),), 1) == (letter.deaths, letter.message.deaths)
        source = published(letter)


def test_more_deaths_than_an_octet_counts():
    """The deaths since the publish are counted up to 255; older ones no longer make a cycle."""
    source = message()
    for number in range(300):
        source = letter_of(die(source, f"q{number}", most_deaths=1000))

    assert 255 == source.deaths
    assert 300 == len(deaths(die(source, "q299", most_deaths=1000)))


def test_run_shares_the_work():
    """Equal messages of one second share headers and keys; another second makes new ones."""
    one, other, later = die(message(b"1")), die(message(b"22")), die(message(b"1"), now=NOW + 1)

    assert one.headers is other.headers
    assert one.routing_keys is other.routing_keys
    assert (1, 2) == (letter_of(one).body_size, letter_of(other).body_size)
    assert one.headers != later.headers


def queues(*names):
    return [SimpleNamespace(name=name) for name in names]


def test_queue_to_itself():
    """A queue does not get back messages that expire in it."""
    letter = die(message())

    assert [True, False] == [cycles(letter.deaths, name) for name in ("q", "other")]


def test_rejected_may_come_back():
    """A queue gets back messages that a consumer rejects."""
    assert not cycles(die(message(), reason="rejected").deaths, "q")


def test_cycling_queues_are_left_out(caplog):
    """Queues of a cycle are left out, and the cycle is logged once."""
    detector = Cycles()
    letter = die(letter_of(die(message(), "a")), "b", "maxlen")
    targets = queues("a", "c", "b")

    with caplog.at_level(logging.WARNING):
        left = [detector.remove_cycling(targets, letter.deaths) for _ in range(3)]

    assert [["c"]] * 3 == [[queue.name for queue in some] for some in left]
    assert ["a, b, a", "b, b, a"] == [text.split(": ")[2].split(" (newest")[0] for text in caplog.messages]


def test_without_a_cycle_all_queues_remain(caplog):
    """Without a cycle all queues are returned, and nothing is logged."""
    targets = queues("a", "c")

    assert targets is Cycles().remove_cycling(targets, die(message()).deaths)
    assert [] == caplog.messages


def test_reported_cycles_are_bounded(caplog):
    """Cycles caused by clients fill neither memory nor the log."""
    detector = Cycles()
    detector.MAX_LOGGED = 2
    for name in "abc":
        assert not detector.remove_cycling(queues(name), die(message(), name).deaths)

    assert 2 == len(caplog.messages)
