"""The ranges of time that a request asks for: parameters `lengths_age`, `lengths_incr` and so on."""

from collections.abc import Mapping

from leveret.broker.http.errors import ApiError, bad_request
from leveret.broker.http.route import Key
from leveret.broker.statistics.rates import Ranges, Span

MOST_SAMPLES = 500
_NAMES = ("lengths", "msg_rates", "data_rates", "node_stats")
QUERY = tuple(
    Key(f"{name}_{part}", "integer", doc=f"{what}, seconds")
    for name in _NAMES
    for part, what in (("age", "samples of this time"), ("incr", "time between two samples"))
)


def asked_ranges(query: Mapping[str, str]) -> Ranges:
    """Return the ranges of a query.

    Raises:
        ApiError: a range is not positive, or has too many samples.

    """
    return Ranges(*[_span(query, name) for name in _NAMES])


def _span(query: Mapping[str, str], name: str) -> Span | None:
    given = query.get(f"{name}_age", ""), query.get(f"{name}_incr", "")
    try:
        age, increment = (int(each) for each in given)
    except ValueError:
        return None
    text = f"Invalid range parameters: age {age}, incr {increment}"
    if age <= 0 or increment <= 0:
        raise ApiError(400, "invalid_range_parameters", text)
    if age / increment > MOST_SAMPLES:
        raise bad_request(text)
    return Span(age, increment)
