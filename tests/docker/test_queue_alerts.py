"""Alerts of queues, raised by the figures of a real broker: each step of its life counts as a minute for Prometheus."""

import re
import shutil
import time
from collections import Counter

import pika
import pytest
import yaml
from docker.test_watching import DETAILED, get
from processes.commands import execute
from processes.running import ROOT, Running, watched

MINUTES = 50
SECONDS = 60
GROWTH = 10
BACKLOG = 1000
SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")
ALERTS = {
    ("LeveretQueueHasNoConsumer", "alone"),
    ("LeveretQueueGrows", "growing"),
    ("LeveretConsumersStall", "stalled"),
    ("LeveretDeadLettersFill", "failed"),
}
"""All that must be raised. Not for `served`, `shrinking`, `rejecting` and `delaying`, nor because of their consumers."""


class Fleet:
    """Workers of all kinds, on one connection.

    Args:
        address: of the broker.

    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(*address))
        self.publishing = self.connection.channel()
        self.publishing.confirm_delivery()
        for name in ("served", "alone", "growing", "shrinking", "stalled", "failed"):
            self.publishing.queue_declare(name)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
        self.publishing.queue_declare("rejecting", arguments=dead)
        self.publishing.queue_declare("delaying", arguments={"x-message-ttl": 150})
        self.published: Counter[str] = Counter()
        self.got: Counter[str] = Counter()
        self.held: list[tuple[pika.adapters.blocking_connection.BlockingChannel, int]] = []
        self.publish("shrinking", BACKLOG)
        self.consume("served", 0, lambda channel, tag: channel.basic_ack(tag))
        self.consume("rejecting", 0, lambda channel, tag: channel.basic_reject(tag, requeue=False))
        self.consume("stalled", 5, lambda _channel, _tag: None)
        self.consume("growing", 1, lambda channel, tag: self.held.append((channel, tag)))
        self.consume("shrinking", 10, lambda channel, tag: self.held.append((channel, tag)))

    def publish(self, queue: str, number: int) -> None:
        for _ in range(number):
            self.publishing.basic_publish("", queue, b"x")
        self.published[queue] += number

    def consume(self, queue: str, prefetch: int, settle) -> None:
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=prefetch)

        def received(channel, method, _properties, _body):
            self.got[queue] += 1
            settle(channel, method.delivery_tag)

        channel.basic_consume(queue, received)

    def minute(self) -> None:
        """Do the work of a minute, and wait until the broker has seen it."""
        for queue, number in (
            ("served", 5),
            ("alone", 1),
            ("growing", GROWTH),
            ("stalled", 1),
            ("rejecting", 2),
        ):
            self.publish(queue, number)
        self.publish("delaying", 1)
        held, self.held = self.held, []
        for channel, tag in held:
            channel.basic_ack(tag)
        deadline = time.monotonic() + SECONDS
        while (
            any(self.got[queue] < self.published[queue] for queue in ("served", "rejecting")) or not self.held
        ):
            assert time.monotonic() < deadline, self.got
            self.connection.process_data_events(0.01)
        self.publishing.queue_declare("served", passive=True)


@pytest.fixture(scope="module")
def minutes(tmp_path_factory):
    """Values of each series by the minute, as Prometheus would have read them."""
    series: dict[str, list[str]] = {}
    with Running(tmp_path_factory.mktemp("alerts"), *watched()) as broker:
        address = (
            broker.wait_for("started HTTP listener").partition("started HTTP listener on ")[2].split()[0]
        )
        broker.wait_for("Server startup complete")
        fleet = Fleet(broker.address)
        for minute in range(MINUTES):
            fleet.minute()
            for line in get(address, DETAILED).splitlines():
                if (found := SAMPLE.fullmatch(line)) is not None:
                    values = series.setdefault(f'{found[1]}{{{found[2]},instance="a"}}', [])
                    values += ["_"] * (minute - len(values)) + [found[3]]
        fleet.connection.close()
    return series


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine")
def test_alerts_are_raised_for_the_queues_that_need_somebody_and_no_others(minutes, tmp_path):
    """A queue without a consumer, one that grows, one whose consumer hangs, and dead letters; each by its own name."""
    told = tmp_path / "told.yml"
    told.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(ROOT / "docker" / "prometheus" / "alerts.yml")],
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": [
                            {"series": name, "values": " ".join(values)} for name, values in minutes.items()
                        ],
                        "promql_expr_test": [
                            {
                                "expr": 'count by (alertname, queue) (ALERTS{alertstate="firing"})',
                                "eval_time": f"{MINUTES - 1}m",
                                "exp_samples": [
                                    {"labels": f'{{alertname="{alert}", queue="{queue}"}}', "value": 1}
                                    for alert, queue in sorted(ALERTS)
                                ],
                            }
                        ],
                    }
                ],
            }
        )
    )
    done = execute(["promtool", "test", "rules", told], timeout=SECONDS)

    assert "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_each_alert_of_queues_has_its_queue_here():
    """Every alert of the group is among those that must be raised."""
    groups = yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yml").read_text())["groups"]
    (of_queues,) = [group["rules"] for group in groups if group["name"] == "leveret-queues"]

    assert {rule["alert"] for rule in of_queues} == {alert for alert, _queue in ALERTS}
