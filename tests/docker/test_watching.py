"""A running broker exposes the metrics that the dashboard and the alerts ask Prometheus for."""

import json
import re
import urllib.parse
import urllib.request

import pika
import pytest
import yaml
from grafana import promql
from grafana.exposition import Scraped
from processes.running import ROOT, Running, watched

DOCKER = ROOT / "docker"
BOARD = json.loads((DOCKER / "grafana" / "dashboards" / "leveret.json").read_text())
SHOWN = [
    *(query["expr"] for panel in BOARD["panels"] for query in panel["targets"]),
    *(variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"),
]
GROUPS = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"]]
HOW_TO = (ROOT / "docs" / "howto" / "watch-with-grafana.md").read_text()
TARGET_LABELS = {"instance", "job"}
OF_COUNTERS = {"rate", "increase"}
SECONDS = 30
(OF_QUEUES,) = [
    job
    for job in yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    if job["job_name"] == "leveret-queues"
]
DETAILED = f"{OF_QUEUES['metrics_path']}?{urllib.parse.urlencode(OF_QUEUES['params'], doseq=True)}"
MODES = ("standard", "consumer-ack", "consumer-ack-light")


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=SECONDS) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of the metrics of a broker that has confirmed in each mode, and has seen orders."""
    with Running(tmp_path_factory.mktemp("watched"), *watched()) as broker:
        found = broker.wait_for("started HTTP listener").partition("started HTTP listener on ")[2].split()[0]
        broker.wait_for("Server startup complete")
        with pika.BlockingConnection(pika.ConnectionParameters(*broker.address)) as connection:
            connection.channel().queue_declare("orders")
            for mode in MODES:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare(mode, durable=True, arguments={"x-confirm-mode": mode})
                channel.basic_consume(mode, lambda *_delivery: None, auto_ack=True)
                channel.basic_publish("", mode, b"", pika.BasicProperties(delivery_mode=2))
            yield found


@pytest.fixture(scope="module")
def scraped(address):
    """The broker's answers to Prometheus; what both of them have, such as its identity, once."""
    of_queues = get(address, DETAILED).splitlines(keepends=True)
    return Scraped([get(address, "/metrics"), *(line for line in of_queues if "_detailed_" in line)])


def test_requests_of_the_page_are_answered(address):
    """Each address of the page about Grafana exists, and the one that asks for a queue finds it."""
    paths = re.findall(r"`(/(?:metrics|healthz|readyz)[^`]*)`", HOW_TO)
    answers = {path: get(address, path) for path in paths}
    (detailed,) = [text for path, text in answers.items() if "queue=" in path]

    assert {"/metrics", "/metrics/per-object", "/healthz", "/readyz"} < answers.keys()
    assert 'rabbitmq_detailed_queue_messages_ready{vhost="/",queue="orders"} 0' in detailed
    assert 'queue="standard"' not in detailed


@pytest.mark.parametrize("expression", [*SHOWN, *(alert["expr"] for alert in ALERTS)])
def test_each_query_has_an_answer(scraped, expression):
    """Each metric is in the answer, has the labels that it is chosen and summed by, and counts if a rate is taken of it."""
    parsed = promql.parse(expression)

    assert parsed.selectors
    for metric, matchers, function, _is_range in parsed.selectors:
        if metric == "up":  # Prometheus' own
            continue
        series = scraped.values(metric)
        assert series, metric
        labels = {label for each in series for label, _value in each} | TARGET_LABELS
        assert {label for label, _operator, _value in matchers} | parsed.by <= labels
        if scraped.kind(metric) in {"counter", "histogram"}:
            assert function in OF_COUNTERS | {"max_over_time"}, (
                metric
            )  # the latter: whether it has counted at all
        else:
            assert function not in OF_COUNTERS, metric
    assert parsed.joined | parsed.taken <= TARGET_LABELS


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_the_matter(alert):
    """An alert has a name, a weight and two sentences; it names only labels that exist, and uses no other keys."""
    texts = alert["annotations"]

    assert (
        {"alert", "expr", "labels", "annotations"}
        <= alert.keys()
        <= {"alert", "expr", "for", "labels", "annotations"}
    )
    assert re.fullmatch("Leveret[A-Za-z]+", alert["alert"])
    assert re.fullmatch(r"\d+[smh]", alert.get("for", "1m"))
    assert alert["labels"].keys() == {"severity"}
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert {"summary", "description"} == texts.keys()
    assert all(text.endswith(".") for text in texts.values())
    of_queue = {"$labels.queue", "$labels.vhost"} if "_detailed_queue_" in alert["expr"] else set()
    assert {"$labels.instance"} | of_queue == set(re.findall(r"\$labels\.\w+", texts["summary"]))


def test_alerts_have_names_of_their_own():
    """Alerts have names of their own, and so have groups."""
    assert len(ALERTS) == len({alert["alert"] for alert in ALERTS})
    assert len(GROUPS) == len({group["name"] for group in GROUPS})


def test_every_alert_has_an_example():
    """Every alert has an example of its series beside the tests, for a machine that has promtool."""
    places = (ROOT / "tests" / "docker" / "alerts.yml", ROOT / "tests" / "docker" / "test_queue_alerts.py")
    examples = "".join(place.read_text() for place in places)

    assert [] == [alert["alert"] for alert in ALERTS if f'"{alert["alert"]}"' not in examples]


def test_panels_that_are_explained_are_there():
    """The page about Grafana describes panels that the dashboard has."""
    titles = re.findall(r"^\| ([A-Z][^|`]*?) \|", HOW_TO, re.MULTILINE)

    assert {"Panel"} < set(titles) <= {"Panel"} | {panel["title"] for panel in BOARD["panels"]}
