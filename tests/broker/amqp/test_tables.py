import datetime as dt
import decimal
import struct

import pytest
from hypothesis import given, strategies as st
from pamqp import decode as pamqp_decode, encode as pamqp_encode

from leveret.broker.amqp import tables
from leveret.broker.amqp.errors import MalformedTable, TableTooLarge
from leveret.broker.amqp.tables import MAX_ENTRIES, decode_table, encode_table, plain_end

octet_text = st.binary(max_size=40).map(lambda octets: octets.decode("utf-8", "surrogateescape"))


def numbers(name, low, high):
    return st.tuples(st.just(name), st.integers(low, high))


flat_fields = st.one_of(
    st.tuples(st.just("bool"), st.booleans()),
    numbers("byte", -(2**7), 2**7 - 1),
    numbers("unsignedbyte", 0, 2**8 - 1),
    numbers("short", -(2**15), 2**15 - 1),
    numbers("unsignedshort", 0, 2**16 - 1),
    numbers("signedint", -(2**31), 2**31 - 1),
    numbers("unsignedint", 0, 2**32 - 1),
    numbers("long", -(2**63), 2**63 - 1),
    numbers("timestamp", 0, 2**64 - 1),
    st.tuples(st.just("float"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("double"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("decimal"), st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1))),
    st.tuples(st.just("longstr"), octet_text),
    st.tuples(st.just("binary"), st.binary(max_size=40)),
    st.just(("void", None)),
)
fields = st.recursive(
    flat_fields,
    lambda inner: st.one_of(
        st.tuples(st.just("array"), st.lists(inner, max_size=4)),
        st.tuples(st.just("table"), st.dictionaries(octet_text, inner, max_size=4)),
    ),
    max_leaves=12,
)
typed_tables = st.dictionaries(octet_text, fields, max_size=6)

plain_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
        st.binary(max_size=20).map(bytearray),
        st.integers(0, 2**32 - 1).map(lambda seconds: dt.datetime.fromtimestamp(seconds, dt.UTC)),
        st.builds(decimal.Decimal, st.integers(0, 2**31 - 1)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=20), inner, max_size=4)
    ),
    max_leaves=12,
)


def as_plain(value):
    """Convert a table decoded by pamqp to the form that `tables.plain` returns."""
    match value:
        case dict():
            return {name: as_plain(inner) for name, inner in value.items()}
        case list():
            return [as_plain(inner) for inner in value]
        case dt.datetime():
            return int(value.timestamp())
        case bytearray():
            return bytes(value)
        case _:
            return value


def table_of(octets):
    data = struct.pack(">I", len(octets)) + octets
    return tables.decode_table(data, 0, len(data))[0]


@given(typed_tables)
def test_round_trip_of_typed_tables(table):
    """Every typed table comes back from its octets with types, values and order unchanged."""
    data = tables.encode_table(table)
    decoded, stop = tables.decode_table(b"##" + data + b"##", 2, len(data) + 2)
    assert stop == len(data) + 2
    assert list(table.items()) == list(decoded.items())


@given(st.dictionaries(st.text(max_size=20), plain_values, max_size=6))
def test_agrees_with_pamqp(mapping):
    """A table written by pamqp is read as pamqp reads it, and encoded as pamqp encoded it."""
    data = pamqp_encode.field_table(mapping)
    decoded, stop = tables.decode_table(data, 0, len(data))
    assert len(data) == stop
    assert as_plain(pamqp_decode.field_table(data)[1]) == tables.plain(decoded)
    assert data == tables.encode_table(decoded)


@given(typed_tables, st.binary(max_size=9), st.data())
def test_what_needs_no_decoder_is_accepted_by_it(table, before, data):
    """A table with an end is one for the decoder, up to there, and has no field of routing keys, however it is changed."""
    octets = bytearray(encode_table(table))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets[at] = data.draw(st.one_of(st.just((octets[at] + 1) % 256), st.integers(0, 255)))
    whole = before + octets + bytes(data.draw(st.integers(0, 300)))
    try:
        end = plain_end(whole, len(before))
    except IndexError:
        return
    if 0 <= end <= len(whole):
        found, stop = decode_table(whole, len(before), end)
        assert end == stop
        assert not {"CC", "BCC"} & set(found)


@given(typed_tables)
def test_most_tables_need_no_decoder(table):
    """Only fields of routing keys, deep levels and large numbers of floats need one."""
    octets = encode_table(table)
    routed = any(name in octets for name in (b"\x02CC", b"\x03BCC"))
    exotic = any(pattern in octets for pattern in (b"d\x7f", b"d\xff", b"f\x7f", b"f\xff"))
    deep = levels(("table", table)) > 4
    assert routed or exotic or deep or len(octets) > 4000 or len(octets) == plain_end(octets, 0)


def levels(field):
    """Return the number of levels of a value: 0 of a scalar."""
    kind, value = field
    if kind not in ("table", "array"):
        return 0
    return 1 + max(map(levels, value.values() if kind == "table" else value), default=0)


@pytest.mark.parametrize("octets", [b"V", b"\1xV"], ids=["array", "table"])
def test_a_table_with_many_values_needs_a_decoder(octets):
    """No table beyond the limit of values has an end."""
    values = octets * (MAX_ENTRIES + 1)
    if octets == b"V":
        values = b"\1xA" + len(values).to_bytes(4, "big") + values
    table = len(values).to_bytes(4, "big") + values
    with pytest.raises(TableTooLarge):
        decode_table(table, 0, len(table))
    assert -1 == plain_end(table, 0)


@given(st.binary(max_size=200))
def test_arbitrary_octets_raise_nothing_else(octets):
    """Arbitrary octets are a table or a MalformedTable, and a table that was read can be written."""
    try:
        table = table_of(octets)
    except MalformedTable:
        return
    assert table == table_of(tables.encode_table(table)[4:])


@given(typed_tables, st.data())
def test_no_prefix_is_a_table(table, data):
    """A table cut off anywhere is malformed: no length is taken from beyond the end."""
    octets = tables.encode_table(table)
    cut = data.draw(st.integers(0, len(octets) - 1))
    with pytest.raises(MalformedTable):
        tables.decode_table(octets, 0, cut)


@pytest.mark.parametrize(
    ("octets", "field"),
    [
        (b"t\x02", ("bool", True)),
        (b"b\xff", ("byte", -1)),
        (b"B\xff", ("unsignedbyte", 255)),
        (b"s\xff\xff", ("short", -1)),
        (b"u\xff\xff", ("unsignedshort", 65535)),
        (b"I\xff\xff\xff\xff", ("signedint", -1)),
        (b"i\xff\xff\xff\xff", ("unsignedint", 2**32 - 1)),
        (b"l" + b"\xff" * 8, ("long", -1)),
        (b"L" + b"\xff" * 8, ("long", -1)),
        (b"T" + b"\xff" * 8, ("timestamp", 2**64 - 1)),
        (b"f\x3f\x80\x00\x00", ("float", 1.0)),
        (b"d\x3f\xf0" + b"\0" * 6, ("double", 1.0)),
        (b"D\x02\xff\xff\xff\xff", ("decimal", (2, 2**32 - 1))),
        (b"S\0\0\0\x01\xff", ("longstr", "\udcff")),
        (b"x\0\0\0\x01\xff", ("binary", b"\xff")),
        (b"V", ("void", None)),
        (b"A\0\0\0\x02b\x05", ("array", [("byte", 5)])),
        (b"F\0\0\0\x04\x01kb\x05", ("table", {"k": ("byte", 5)})),
    ],
)
def test_each_tag(octets, field):
    """Each of RabbitMQ's type tags is read as rabbit_binary_parser reads it."""
    assert {"a": field} == table_of(b"\x01a" + octets)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x01",
        b"\x01a",
        b"\x05ab",
        b"\x01aZ\0",
        b"\x01a\0",
        b"\x01at",
        b"\x01aI\0\0\0",
        b"\x01aD\0\0\0\0",
        b"\x01aS\0\0\0\x02x",
        b"\x01aS\0\0",
        b"\x01aF\0\0\0\x05\x01kb\x05",
        b"\x01aA\xff\xff\xff\xffb\x05",
        b"\x01ad\x7f\xf8\0\0\0\0\0\0",
        b"\x01af\x7f\x80\0\0",
    ],
)
def test_malformed(octets):
    """Cut-off fields, unknown tags and floats that are not numbers are refused, as by RabbitMQ."""
    with pytest.raises(MalformedTable):
        table_of(octets)


def nested(levels):
    octets = b""
    for _ in range(levels - 1):
        octets = b"\x01aF" + struct.pack(">I", len(octets)) + octets
    return octets


def test_depth_limit():
    """A table may be 32 levels deep and no more."""
    table_of(nested(tables.MAX_DEPTH))
    with pytest.raises(MalformedTable, match="levels"):
        table_of(nested(tables.MAX_DEPTH + 1))


def test_entry_limit():
    """A table and all inside it may have 4096 entries together and no more."""
    half = tables.MAX_ENTRIES // 2
    full = b"\x01aA" + struct.pack(">I", half - 1) + b"V" * (half - 1) + b"\0V" * half
    table_of(full)
    with pytest.raises(MalformedTable, match="4096 values"):
        table_of(full + b"\0V")


def test_first_of_two_counts():
    """The first of two fields with one name counts, as in RabbitMQ's look-ups."""
    assert {"a": ("byte", 1)} == table_of(b"\x01ab\x01\x01ab\x02")


@pytest.mark.parametrize(
    "field",
    [
        ("byte", 128),
        ("unsignedint", -1),
        ("decimal", (256, 0)),
        ("float", 1e300),
        ("wrong", 1),
        ("long", "1"),
    ],
)
def test_encode_refuses_what_does_not_fit(field):
    """A number outside its type and a type that does not exist are a ValueError."""
    with pytest.raises(ValueError, match=r"not|unknown"):
        tables.encode_table({"a": field})


def test_encode_refuses_long_names():
    """A field name of 256 octets cannot be written."""
    with pytest.raises(ValueError, match="256"):
        tables.encode_table({"ü" * 128: ("void", None)})


def test_typed():
    """Plain values get the types that RabbitMQ gives its own server properties and arguments."""
    mapping = {
        "s": "x", "b": True, "i": 5, "l": 2**31, "f": 1.5, "n": None, "x": b"\0",
        "t": {"a": 1}, "a": ["y", 1], "d": decimal.Decimal("1.25"),
        "m": dt.datetime(1970, 1, 2, tzinfo=dt.UTC), "r": ("short", 3),
    }  # fmt: skip
    expected = {
        "s": ("longstr", "x"), "b": ("bool", True), "i": ("signedint", 5), "l": ("long", 2**31),
        "f": ("double", 1.5), "n": ("void", None), "x": ("binary", b"\0"),
        "t": ("table", {"a": ("signedint", 1)}), "a": ("array", [("longstr", "y"), ("signedint", 1)]),
        "d": ("decimal", (2, 125)), "m": ("timestamp", 86400), "r": ("short", 3),
    }  # fmt: skip
    assert expected == tables.typed(mapping)
    assert decimal.Decimal("1.25") == tables.plain(expected)["d"]


@pytest.mark.parametrize(
    ("value", "error"), [(2**63, ValueError), (object(), TypeError), (decimal.Decimal(-1), ValueError)]
)
def test_typed_refuses(value, error):
    """A value that no field type holds is refused."""
    with pytest.raises(error):
        tables.typed({"a": value})


# Printed by io_lib:format("~p", ...) of Erlang/OTP 25.
TERMS = [
    (("double", 1.0), "1.0"), (("double", 0.1), "0.1"), (("double", 100.0), "100.0"), (("double", 1000.0), "1.0e3"),
    (("double", 100000.0), "1.0e5"), (("double", 1.5e-5), "1.5e-5"), (("double", 0.0001), "0.0001"),
    (("double", 123456789.123), "123456789.123"), (("double", 1e22), "1.0e22"), (("double", -0.0), "-0.0"),
    (("double", 12345678901234567890.0), "1.2345678901234567e19"), (("double", -2.5), "-2.5"),
    (("longstr", "abc"), '<<"abc">>'), (("longstr", ""), "<<>>"), (("binary", b"\0\x01"), "<<0,1>>"),
    (("longstr", 'a"b\\\n'), '<<"a\\"b\\\\\\n">>'), (("bool", True), "true"), (("void", None), "undefined"),
    (("decimal", (1, 2)), "{1,2}"), (("array", []), "[]"), (("array", [("byte", 7), ("byte", 8)]), "[{byte,7},{byte,8}]"),
    (("table", {"k": ("longstr", "v")}), '[{<<"k">>,longstr,<<"v">>}]'), (("longstr", "ü"), '<<"ü">>'),
]  # fmt: skip


@pytest.mark.parametrize(("field", "text"), TERMS)
def test_terms_print_as_in_erlang(field, text):
    """Values in reply texts are printed as Erlang prints them."""
    assert text == tables.term_text(field)


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"", "<<>>"),
        (b'a"b\n', r'<<"a\"b\n">>'),
        ("hé".encode(), '<<"hé"/utf8>>'),
        ("\u20ac".encode(), '<<"\u20ac"/utf8>>'),
        (b"\xa0\xff", '<<"\xa0\xff">>'),
        (b"\xc2\x80", "<<194,128>>"),
        (b"\x7f", "<<127>>"),
    ],
)
def test_binaries_of_erlang_29(octets, text):
    """Printable UTF-8 is quoted and marked, other printable Latin-1 is quoted, and the rest is numbers (as observed)."""
    assert text == tables.utf8_text(octets)


def test_argument_texts():
    """Arguments in `inequivalent arg` texts read as rabbit_misc:val prints them."""
    assert tables.argument_text(None) == "none"
    assert tables.argument_text(("longstr", "ae2")) == "the value 'ae2' of type 'longstr'"
    assert tables.argument_text(("signedint", 2000)) == "the value '2000' of type 'signedint'"
    assert tables.value_text(("binary", b"a\xff")) == "a\udcff"
