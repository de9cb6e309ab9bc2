"""The page of metrics."""

import re

from doubles.fakes import Client, Node
from grafana.exposition import Scraped

from docs.generate.metrics import render
from leveret.broker.metrics.aggregates import FORWARDED, REPLICATION
from leveret.broker.metrics.sampler import Process
from leveret.broker.metrics.scrape import aggregated, per_object

NAME = re.compile(r"^\| `([a-z_]+)` \|", re.MULTILINE)


def test_the_page_names_what_is_shown():
    """The page has each metric of an answer, and the answers have each of the page that has a value here."""
    node = Node()
    Client(node).declare("q")
    process = Process(1, 2, 0.0, 0.0, 0.0)
    answers = [Scraped(aggregated(node, process)), Scraped(per_object(node, process))]
    types = [
        line.split()[2] for each in answers for line in each.text.splitlines() if line.startswith("# TYPE ")
    ]
    elsewhere = {
        "rabbitmq_queue_info",
        "rabbitmq_cluster_exchange_name",
        "rabbitmq_cluster_exchange_bindings",
        "rabbitmq_disk_space_available_bytes",
        "leveret_tls_certificate_not_after_seconds",
        "leveret_auth_backend_requests_total",
        *(column.name for column in REPLICATION),
        "leveret_replication_info",
        *(family.name for family in FORWARDED),
        "leveret_auth_backend_request_seconds_total",
    }

    declared = render().partition("## Differences from RabbitMQ")[0]
    assert set(types) - elsewhere == set(NAME.findall(declared)) - elsewhere
