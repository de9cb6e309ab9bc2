import contextlib
import struct
from unittest import mock

import pamqp.frame
import pytest
from hypothesis import given, settings, strategies as st
from pamqp import commands as pamqp_commands

from leveret.broker.amqp import codec, commands, tables
from leveret.broker.amqp.errors import MalformedMethod, UnknownMethod

METHODS = [*pamqp_commands.INDEX_MAPPING.values(), commands.Access.Request, commands.Access.RequestOk]

short_text = st.text(max_size=60)
key_text = st.text(max_size=30)  # pamqp cuts field names at 128 octets
VALUES = {
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),  # pamqp reads the upper half as negative
    "bit": st.booleans(),
    "shortstr": short_text,
    "longstr": st.text(max_size=300),
    "table": st.dictionaries(
        key_text,
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), short_text),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(key_text, inner, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=4,
    ),
}


def values_of(method):
    return st.tuples(*(VALUES[method.amqp_type(name)] for name in method.__slots__))


any_method = st.sampled_from(METHODS).flatmap(
    lambda method: st.builds(lambda values: commands.make(method, *values), values_of(method))
)


def marshalled(method, channel_id):
    """Marshal by pamqp without its checks of names, which are stricter than RabbitMQ."""
    with mock.patch.object(type(method), "validate", return_value=None):
        return pamqp.frame.marshal(method, channel_id)


def decoded(frame):
    return codec.decode_method(frame, 7, len(frame) - 1)


def plain_fields(method):
    return {
        name: tables.plain(value) if method.amqp_type(name) == "table" else value for name, value in method
    }


@settings(max_examples=300)
@given(any_method, st.integers(0, 65535))
def test_agrees_with_pamqp(method, channel_id):
    """A method that pamqp marshals is decoded with equal class and fields, and our encoder writes the same octets."""
    frame = marshalled(method, channel_id)
    read = decoded(frame)
    assert type(method) is type(read)
    assert dict(method) == plain_fields(read)
    assert frame == codec.encode_any_method(channel_id, read) == codec.encode_method(channel_id, read)


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@settings(max_examples=150)
@given(any_method)
def test_pamqp_reads_what_is_written(method):
    """A client that decodes with pamqp sees the fields that were written."""
    for name, value in method:
        if method.amqp_type(name) == "table":
            setattr(method, name, tables.typed(value))
    frame = codec.encode_method(7, method)
    if method.index in pamqp_commands.INDEX_MAPPING:
        size, channel_id, read = pamqp.frame.unmarshal(frame)
        assert (len(frame), 7) == (size, channel_id)
        assert plain_fields(method) == dict(read)


def nested(levels):
    octets = b""
    for _ in range(levels):
        octets = b"\x01aF" + struct.pack(">I", len(octets)) + octets
    return octets


def declare_with(arguments):
    return b"\x00\x32\x00\x0a\0\0\x01q\0" + struct.pack(">I", len(arguments)) + arguments


def as_frame(payload):
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


def by_pamqp(payload):
    return pamqp.frame.unmarshal(as_frame(payload))[2]


PURGE = b"\x00\x32\x00\x1e\0\0\x01q\0"
ACCEPTED_BY_PAMQP = {
    "octets after the last field": PURGE + b"xyz",
    "a long string that is cut off": b"\x00\x0a\x00\x15\0\0\x01\0abc",
    "a long string cut off in a table": declare_with(b"\x01kS\0\0\0\x09abc"),
    "a field without a value": declare_with(b"\x01k"),
    "an unknown type": declare_with(b"\x01k\0"),
    "an infinite float": declare_with(b"\x01kf\x7f\x80\0\0"),
    "64 levels": declare_with(nested(64)),
    "more than 4096 entries": declare_with(b"\0V" * 5000),
}


@pytest.mark.parametrize("payload", ACCEPTED_BY_PAMQP.values(), ids=ACCEPTED_BY_PAMQP)
def test_refuses_what_pamqp_accepts(payload):
    """Malformed methods and oversized tables that pamqp decodes are refused (docs/adr/0025)."""
    assert by_pamqp(payload).index == int.from_bytes(payload[:4], "big")
    with pytest.raises(MalformedMethod):
        codec.decode_method(payload, 0, len(payload))


def test_pamqp_has_no_depth_limit():
    """Nested tables in one frame exhaust the interpreter's stack in pamqp, and are refused here (docs/adr/0025)."""
    payload = declare_with(nested(2000))
    with pytest.raises(RecursionError):
        by_pamqp(payload)
    with pytest.raises(MalformedMethod):
        codec.decode_method(payload, 0, len(payload))


CHANGED_BY_PAMQP = {
    "type of an integer": declare_with(b"\x01kl" + bytes(7) + b"\x05"),
    "double": declare_with(b"\x01kd" + struct.pack(">d", 0.1)),
    "order of fields": declare_with(b"\x01bV\x01aV"),
    "timestamp in milliseconds": declare_with(b"\x01kT" + struct.pack(">Q", 1_700_000_000_123)),
    "name of more than 128 octets": declare_with(b"\xc8" + b"k" * 200 + b"V"),
}


@pytest.mark.parametrize("payload", CHANGED_BY_PAMQP.values(), ids=CHANGED_BY_PAMQP)
def test_keeps_what_pamqp_changes(payload):
    """Tables that pamqp would not write as it read them keep their octets (docs/adr/0025)."""
    frame = as_frame(payload)
    assert frame != marshalled(by_pamqp(payload), 1)
    assert frame == codec.encode_method(1, decoded(frame))


REFUSED_BY_PAMQP = [
    commands.make(commands.Channel.OpenOk, ""),
    commands.make(commands.Queue.DeclareOk, "a$b", 0, 0),
    commands.make(commands.Basic.ConsumeOk, "\udcff"),
    commands.Channel.Close(404, "a" * 256, 50, 10),
    commands.Connection.Blocked("a" * 256),
]


@pytest.mark.parametrize("method", REFUSED_BY_PAMQP, ids=lambda method: method.name)
def test_writes_what_pamqp_refuses(method):
    """Replies that RabbitMQ sends and pamqp does not encode are encoded (docs/adr/0025)."""
    with pytest.raises((TypeError, ValueError)):
        pamqp.frame.marshal(method, 1)
    frame = codec.encode_method(1, method)
    assert frame == codec.encode_any_method(1, method)
    assert frame[7:11] == method.index.to_bytes(4, "big")


@settings(max_examples=300)
@given(st.sampled_from(METHODS), st.binary(max_size=80))
def test_arbitrary_fields_raise_nothing_else(method, fields):
    """Arbitrary octets after a known index are that method or a MalformedMethod."""
    payload = method.index.to_bytes(4, "big") + fields
    with contextlib.suppress(MalformedMethod):
        assert type(codec.decode_method(memoryview(payload), 0, len(payload))) is method


@settings(max_examples=300)
@given(any_method, st.data())
def test_mutated_methods_raise_nothing_else(method, data):
    """A method with an octet changed or its end cut off is a method or one of the two errors."""
    payload = bytearray(marshalled(method, 1)[7:-1])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(payload)))
    with contextlib.suppress(MalformedMethod, UnknownMethod):
        codec.decode_method(bytes(payload), 0, end)


@given(st.binary(max_size=20))
def test_arbitrary_payloads_raise_nothing_else(payload):
    """Arbitrary octets as a whole payload are a method or one of the two errors."""
    with contextlib.suppress(MalformedMethod, UnknownMethod):
        codec.decode_method(payload, 0, len(payload))


# Sent to RabbitMQ 3.10 on channel 1; the texts are its answers. It resets the connection on a bad table.
QUEUE_DECLARE = b"\x00\x32\x00\x0a\0\0"
REFUSED = [
    (QUEUE_DECLARE + b"\x01q\0\0\0\0\0zz", "cannot decode <<0,0,1,113,0,0,0,0,0,122,122>>", (50, 10)),
    (QUEUE_DECLARE + b"\x09q", "cannot decode <<0,0,9,113>>", (50, 10)),
    (QUEUE_DECLARE + b"\x01\xff\0\0\0\0\0", "Malformed UTF-8 in shortstr", (0, 0)),
    (QUEUE_DECLARE + b"\x01\xff\0\0\0\0\0z", "cannot decode <<0,0,1,255,0,0,0,0,0,122>>", (50, 10)),
    (QUEUE_DECLARE + b"\x01\xff\0\0\0\0\x04\x01aZx", "Malformed UTF-8 in shortstr", (0, 0)),
    (QUEUE_DECLARE + b"\x01q\0\0\0\0\x04\x01aZx", "", (0, 0)),
    (b"\x00\x32\x00", "type 1, all octets = <<0,50,0>>: unknown_frame", (0, 0)),
    (b"", "type 1, all octets = <<>>: unknown_frame", (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "explanation", "ids"), REFUSED)
def test_refusals_in_rabbitmqs_words(payload, explanation, ids):
    """Frames that RabbitMQ cannot decode are refused with its text and the method's ids."""
    with pytest.raises(MalformedMethod) as caught:
        codec.decode_method(payload, 0, len(payload))
    assert explanation == caught.value.explanation
    assert ids == (caught.value.class_id, caught.value.method_id)


def test_unknown_method():
    """An index that no method has is an UnknownMethod with its numbers."""
    with pytest.raises(UnknownMethod) as caught:
        codec.decode_method(b"\x00\x32\x00\x63", 0, 4)
    assert (caught.value.class_id, caught.value.method_id) == (50, 99)


def test_publish_takes_any_octets():
    """The names in basic.publish need not be UTF-8, as RabbitMQ does not check them."""
    payload = b"\x00\x3c\x00\x28\0\0\x01\xfe\x02\xff\xed\x01"
    read = codec.decode_method(payload, 0, len(payload))
    assert read.routing_key == "\udcff\udced"
    assert payload == codec.encode_method(1, read)[7:-1]


def test_surrogates_pass():
    """A name with an encoded surrogate passes, as xmerl_ucs lets it, and keeps its octets."""
    payload = b"\x00\x32\x00\x1e\0\0\x03\xed\xa0\x80\0"
    read = codec.decode_method(payload, 0, len(payload))
    assert payload == codec.encode_method(1, read)[7:-1]


def test_delivery_tags_are_unsigned():
    """A delivery tag of 64 bits is read as positive, as RabbitMQ reads it."""
    payload = b"\x00\x3c\x00\x50" + b"\xff" * 8 + b"\x01"
    read = codec.decode_method(payload, 0, len(payload))
    assert (read.delivery_tag, read.multiple) == (2**64 - 1, True)


def test_decode_stops_at_its_end():
    """Octets before and after the payload in the same buffer are not touched."""
    frame = codec.encode_method(1, commands.make(commands.Queue.Purge, 0, "q", False))
    buffer = b"xyz" + frame + frame
    read = codec.decode_method(memoryview(buffer), 10, 2 + len(frame))
    assert (read.queue, read.nowait) == ("q", False)


def test_make_takes_names_that_pamqp_refuses():
    """A queue name with a dollar sign, which pamqp's constructor refuses, can be answered."""
    frame = codec.encode_method(1, commands.make(commands.Queue.DeclareOk, "a$b*ü", 1, 2))
    assert plain_fields(decoded(frame)) == {"queue": "a$b*ü", "message_count": 1, "consumer_count": 2}
    with pytest.raises(ValueError, match="argument"):
        commands.make(commands.Queue.DeclareOk, "a")


def test_missing_values_are_empty():
    """Attributes of None are written as empty strings, zeros and empty tables."""
    method = commands.make(commands.Exchange.Bind, None, None, None, None, None, None)
    empty = commands.make(commands.Exchange.Bind, 0, "", "", "", False, {})
    assert codec.encode_method(1, empty) == codec.encode_method(1, method)


@pytest.mark.parametrize(
    ("text", "sent"),
    [("a" * 256, "a" * 252 + "..."), ("a" * 251 + "ü" * 5, "a" * 251 + "..."), ("a" * 255, "a" * 255)],
)
def test_reply_texts_are_cut(text, sent):
    """A reply text of more than 255 octets is cut as RabbitMQ cuts it, but not inside a character."""
    close = commands.Channel.Close(404, text, 50, 10)
    assert sent == decoded(codec.encode_method(1, close)).reply_text


@pytest.mark.parametrize(
    "method",
    [commands.make(commands.Queue.PurgeOk, 2**32), commands.make(commands.Basic.CancelOk, "t" * 256)],
)
def test_values_that_do_not_fit(method):
    """A number or name too large for its field is a ValueError that names the method."""
    with pytest.raises(ValueError, match=method.name):
        codec.encode_method(1, method)


def test_ids():
    """Class and method ids are those of the specification."""
    assert codec.method_ids(commands.Queue.Declare()) == (50, 10)
    assert codec.method_ids(commands.Access.Request()) == (30, 10)
    assert codec.method_ids(commands.Access.RequestOk()) == (30, 11)


def test_access_request_octets():
    """access.request and request-ok, which pamqp lacks, have RabbitMQ's fields."""
    payload = b"\x00\x1e\x00\x0a\x05/data\x1d"
    read = codec.decode_method(payload, 0, len(payload))
    assert dict(read) == {
        "realm": "/data", "exclusive": True, "passive": False, "active": True, "write": True, "read": True,
    }  # fmt: skip
    assert (
        codec.encode_method(1, commands.Access.RequestOk()) == b"\x01\0\x01\0\0\0\x06\0\x1e\0\x0b\0\x01\xce"
    )
