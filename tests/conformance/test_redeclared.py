"""Each argument that RabbitMQ knows, declared again with another value, without it, and where it was not: as in the record."""

from collections.abc import Callable

import pytest
from conformance import redeclared
from conformance.brokers import Broker

from leveret.broker.queue.unknown_arguments import OF_OTHERS

RECORDED = redeclared.recorded()
OF_CLASSIC_TOO = "classic x-delivery-limit"
"""An argument with an effect on classic queues, too, which is compared as that of quorum queues."""
_RETRIES = ("x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max")
"""Arguments of 4.3 that all queues obey here, with the rules of 3.13, too."""
ANSWERED_AS_IN_4_3 = ("x-consumer-timeout changed", "x-consumer-timeout added")
"""Ends of the cases in which ours answers as quorum queues of RabbitMQ 4.3 do, and 3.10 accepts."""
OUR_ORDER = {
    "classic - order": ("x-delivery-limit", *_RETRIES, "x-consumer-timeout"),
    "quorum - order": (*_RETRIES, "x-consumer-timeout"),
}
"""Arguments that ours compares after those that RabbitMQ 3.10 does."""
KNOWN_DIFFERENCES = {
    *_RETRIES,
    "x-consumer-timeout",
    "x-consumer-disconnected-timeout",
    "x-queue-leader-locator",
    "x-queue-master-locator",
}
"""Arguments that the two releases take differently and that nobody is warned of: obeyed, refused or meaningless here."""


def _expected(case: str) -> str:
    """Return what ours is to answer."""
    if case in OUR_ORDER:
        return " ".join([*RECORDED["3.10"][case].split(), *OUR_ORDER[case]])
    as_quorum = "quorum " + case.partition(" ")[2]
    if case.endswith(ANSWERED_AS_IN_4_3) or case.split()[1] in _RETRIES:
        return RECORDED["4.3"][as_quorum]
    return RECORDED["3.10"][as_quorum if case.startswith(OF_CLASSIC_TOO) else case]


def test_arguments_are_compared_as_recorded(broker_for: Callable[[str], Broker]) -> None:
    """Ours accepts and refuses what RabbitMQ 3.10 does, with the same texts, except for the listed cases."""
    found = dict(redeclared.outcomes(broker_for("main").address))

    assert {case: _expected(case) for case in found} == found


@pytest.mark.parametrize("argument", redeclared.ARGUMENTS)
def test_what_releases_take_differently_is_told(argument: str) -> None:
    """An argument of which RabbitMQ 3.10 and 4.3 make something different is warned of here, or obeyed."""
    cases = [case for case in RECORDED["3.10"] if case.split()[1] == argument]
    differs = any(RECORDED["3.10"][case] != RECORDED["4.3"][case] for case in cases)

    assert differs == (argument in OF_OTHERS or argument in KNOWN_DIFFERENCES)


@pytest.mark.parametrize("argument", ["x-consumer-timeout", "x-consumer-disconnected-timeout"])
def test_timeouts_are_answered_as_by_4_3(broker_for: Callable[[str], Broker], argument: str) -> None:
    """With the rules of 4.3, timeouts are compared and refused as recorded from it."""
    found = dict(redeclared.outcomes(broker_for("switched").address))
    recorded = {case: answer for case, answer in RECORDED["4.3"].items() if case.split()[1] == argument}

    assert recorded == {case: found.get(case, "-") for case in recorded}
