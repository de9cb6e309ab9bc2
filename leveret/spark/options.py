"""The options of a source or sink, as Spark passes them: texts by name, whatever the case of the name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from leveret.broker.client.options import Options
from leveret.broker.client.uri import Address, MalformedUriError, UriError, endpoint_of, parse

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options of Spark's own, which it passes on to sources and sinks."""
OF_STREAMS: Final = (
    "startingOffset", "endingOffset", "startingTimestamp", "endingTimestamp", "offsetsPerPartition", "keyPartitions",
    "failOnDataLoss",
)  # fmt: skip
MOST_ROWS: Final = 10_000  # default maximum number of messages of a batch from a queue
MOST_QUEUED: Final = 30_000  # maximum of that: the prefetch count, which has 16 bits, is twice as much


class OptionError(ValueError):
    """Raised for an option that is missing, unknown or invalid; the text names it."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker to connect to, and the time in seconds for which a connection is attempted or data awaited."""

    address: Address
    options: Options
    timeout: float


class Given:
    """Reads the options that were given; `check_known` then refuses those that nothing has asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._asked: dict[str, str] = {}

    def text(self, name: str, default: str = "") -> str:
        """Return the text of an option."""
        self._asked[name.lower()] = name
        return self._options.get(name.lower(), default)

    def number(self, name: str, default: int) -> int:
        """Return the number of an option, which is positive; raises OptionError."""
        text = self.text(name, str(default))
        if not text.isdecimal() or (text.strip("0") == "" and default):
            raise OptionError(f"option {name} must be a positive whole number, not '{text}'")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the truth value of an option; raises OptionError."""
        text = self.text(name, str(default)).lower()
        if text not in {"true", "false"}:
            raise OptionError(f"option {name} must be true or false, not '{text}'")
        return text == "true"

    def one_of(self, *names: str) -> tuple[str, str]:
        """Return the name and the text of the one option that is given; raises OptionError for none or several."""
        given = [(name, text) for name in names if (text := self.text(name))]
        if len(given) != 1:
            raise OptionError(f"one of the options {' and '.join(names)} is needed" if not given else
                              f"options {' and '.join(name for name, _ in given)} exclude each other")  # fmt: skip
        return given[0]

    def time(self, name: str) -> int | None:
        """Return a time in seconds since 1970, given in ISO 8601 (UTC by default) or milliseconds since 1970."""
        text = self.text(name)
        if not text:
            return None
        if text.isdecimal():
            return int(text) // 1000
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            wanted = "a time in ISO 8601 or milliseconds since 1970"
            raise OptionError(f"option {name} must be {wanted}, not '{text}'") from None
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())

    def offset(self, name: str, default: str) -> str | int:
        """Return `earliest`, `latest` or a number; raises OptionError."""
        text = self.text(name, default).lower()
        if text in {EARLIEST, LATEST}:
            return text
        if not text.isdecimal():
            raise OptionError(f"option {name} must be {EARLIEST}, {LATEST} or a number, not '{text}'")
        return int(text)

    def broker(self) -> Broker:
        """Return the broker that option `uri` names; raises OptionError, with no password in its text."""
        uri = self.text("uri")
        if not uri:
            raise OptionError("option uri is needed: amqp://user:password@host:5672/vhost")
        try:
            address, options = parse(uri), endpoint_of(uri).options
        except (UriError, MalformedUriError) as error:
            raise OptionError(f"option uri: {error}") from None
        # Spark hides an option of this name in its plans, and shows the whole of a URI.
        address = replace(address, password=self.text("password", address.password))
        # Nothing answers a heartbeat while Spark computes; each wait for data has an end of its own.
        options = replace(options, product="Leveret for Spark", heartbeat=0)
        return Broker(address, options, self.number("timeout", 60))

    def check_known(self) -> None:
        """Raise OptionError for an option that does not exist."""
        unknown = sorted(self._options.keys() - self._asked.keys() - SPARKS_OWN)
        if unknown:
            known = ", ".join(sorted(self._asked.values()))
            raise OptionError(f"unknown option {', '.join(unknown)}; known are {known}")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source."""

    broker: Broker  # to connect to
    stream: str  # the stream or the queue: '' for the other one
    queue: str
    start: str | int  # an offset, `earliest` or `latest`
    end: str | int  # the same; exclusive
    start_time: int | None  # seconds since 1970, which take precedence over these; None if not given
    end_time: int | None
    most: int  # maximum number of messages of a micro-batch; 0 for no limit
    share: int  # number of offsets of a partition
    by_key: int  # number of partitions by routing key; 0 for partitions by offsets
    fails_on_loss: bool  # whether offsets that the stream no longer has are an error
    body_format: str  # `binary`, `text` or `json`

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> "SourceOptions":
        """Return the options of `readStream` (`is_stream`) or `read`; raises OptionError."""
        given = Given(options)
        kind, name = given.one_of("stream", "queue")
        is_queue = kind == "queue"
        made = cls(
            broker=given.broker(),
            stream="" if is_queue else name,
            queue=name if is_queue else "",
            start=given.offset("startingOffset", LATEST if is_stream else EARLIEST),
            end=given.offset("endingOffset", LATEST),
            start_time=given.time("startingTimestamp"),
            end_time=given.time("endingTimestamp"),
            most=given.number("maxOffsetsPerTrigger", MOST_ROWS if is_queue else 0),
            share=given.number("offsetsPerPartition", 100_000),
            by_key=given.number("keyPartitions", 0),
            fails_on_loss=given.flag("failOnDataLoss", default=True),
            body_format=body_of(given)[0],
        )
        given.check_known()
        if is_queue and (wrong := [name for name in OF_STREAMS if given.text(name)]):
            raise OptionError(f"option {wrong[0]} is for streams: a queue has no offsets")
        if is_queue and not is_stream:
            raise OptionError("a queue is only a source of readStream: reading it takes its messages")
        if is_queue and made.most > MOST_QUEUED:
            raise OptionError(f"option maxOffsetsPerTrigger must be at most {MOST_QUEUED} for a queue")
        if is_stream and (made.end != LATEST or made.end_time is not None):
            raise OptionError("options endingOffset and endingTimestamp are for spark.read, which has an end")
        return made


def body_of(given: Given) -> tuple[str, str]:
    """Return the format of bodies, and the columns of JSON objects as DDL; raises OptionError."""
    name, schema = given.text("body_format", "binary").lower(), given.text("body_schema")
    if name not in {"binary", "text", "json"}:
        hint = ": apply from_avro to the binary body" if name == "avro" else ""
        raise OptionError(f"option body_format must be binary, text or json, not '{name}'{hint}")
    if (name == "json") != bool(schema):
        raise OptionError("options body_format=json and body_schema (columns as DDL) need each other")
    return name, schema


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink."""

    broker: Broker  # to connect to
    exchange: str  # to publish to
    routing_key: str | None  # of all messages; None for that of column `key`
    job: str  # id of a job that is not a streaming query; '' for a new one each time
    is_mandatory: bool  # whether a message that no queue takes is an error

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Return the options of `writeStream` or `write`; raises OptionError."""
        given = Given(options)
        kind, name = given.one_of("queue", "exchange")
        key = given.text("routingKey")
        if key and kind == "queue":
            raise OptionError("options routingKey and queue exclude each other")
        made = cls(
            broker=given.broker(),
            exchange=name if kind == "exchange" else "",
            routing_key=name if kind == "queue" else key or None,
            job=given.text("job"),
            is_mandatory=given.flag("mandatory", default=True),
        )
        given.check_known()
        return made
