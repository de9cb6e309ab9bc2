"""The lines above the table."""

import pytest
from samples.top_answers import NODE, OVERVIEW

from leveret.broker.cli.top.model import Broker, alarms, name, summary
from leveret.broker.cli.top.views import shown_width


def texts(broker, width):
    """Return the lines without their styles."""
    return ["".join(text for text, _style in line) for line in summary(broker, width)]


def test_the_summary_at_eighty_cells():
    """Rates, messages, and what the node has."""
    assert [
        "messages/s  in 1,234  out 1,200  acks 0.4  confirms -  unroutable -",
        "messages    ready 12,345  unacked 67  consumers 5  exchanges 7",
        "node        memory 50.0 MiB of 4.00 GiB  disk free 20.0 GiB  files 36 of 20,000",
    ] == [line.removesuffix("  redelivered -") for line in texts(Broker(OVERVIEW, NODE), 80)]


@pytest.mark.parametrize("width", [1, 12, 40, 79, 200])
def test_no_line_is_wider_than_the_terminal(width):
    """A figure without space is left out whole."""
    for line in summary(Broker(OVERVIEW, NODE), width):
        assert shown_width(line) <= max(width, 12)


def test_a_user_who_may_not_see_the_node():
    """It is said why there are no figures; nothing of an empty answer is an error."""
    assert (
        "node        memory and disk are for users with the tag monitoring" == texts(Broker({}, {}), 80)[-1]
    )
    assert [] == alarms({})


def test_the_broker_is_named_as_far_as_it_is_known():
    """A RabbitMQ is called by its name, too."""
    assert ["rabbit@here", "Leveret 0.2.0", "up 1d02h"] == name(Broker(OVERVIEW, NODE))
    assert ["there", "RabbitMQ 3.13.7"] == name(
        Broker({"cluster_name": "there", "rabbitmq_version": "3.13.7"}, {})
    )


def test_alarms_have_figures():
    """The amount that is used or free, and its limit."""
    node = {**NODE, "mem_alarm": True, "disk_free_alarm": True}

    assert [
        "memory 50.0 MiB (limit 4.00 GiB)",
        "disk free 20.0 GiB (limit 47.7 MiB)",
    ] == alarms(node)
