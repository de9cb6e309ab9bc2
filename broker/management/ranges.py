"""The ranges of time that a request asks for: parameters `lengths_age`, `lengths_incr` and so on."""

from collections.abc import Mapping

from leveret.broker.http.errors import ApiError
from leveret.broker.http.route import Key
from leveret.broker.statistics.rates import Ranges, Span

MOST_SAMPLES = 500
_NAMES = ("lengths", "msg_rates", "data_rates", "node_stats")
QUERY = tuple(
    Key(f"{name}_{part}", "integer", doc=f"{what}, seconds")
    for name in _NAMES
    for part, what in (("age", "samples of this time"), ("incr", "time between two samples"))
)


def asked_ranges(query: Mapping[str, str], *, one: bool = False) -> Ranges:
    """Return the ranges of a query; raises ApiError if one is not positive, or has too many samples.

    `one` is true if one object is asked for: RabbitMQ names the error otherwise then.
    """
    try:
        return Ranges(*[_span(query, name) for name in _NAMES])
    except ValueError as error:
        raise ApiError(400, "bad_request" if one else "invalid_range_parameters", str(error)) from None


def _span(query: Mapping[str, str], name: str) -> Span | None:
    given = query.get(f"{name}_age", ""), query.get(f"{name}_incr", "")
    try:
        age, increment = (int(each) for each in given)
    except ValueError:
        return None
    if age <= 0 or increment <= 0 or age / increment > MOST_SAMPLES:
        raise ValueError(f"Invalid range parameters: age {age}, incr {increment}")
    return Span(age, increment)
