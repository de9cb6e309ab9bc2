"""Writes the pictures of the web page in docs/figures/: `make screenshots`.

A broker in this process has queues, a consumer that does not keep up, and dead letters; figures differ each time.
"""

import sys
import time
from pathlib import Path

import pika
from playwright.sync_api import sync_playwright
from services.browsing import CHROMIUM, NO_CHROMIUM, WIDE, Page, cookie_of

import leveret

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
SECONDS = 15.0
ROUTES = {
    "page-overview-light": ("overview", "light"),
    "page-queues-dark": ("queues", "dark"),
    "page-messages-light": ("queues/%2F/orders.failed?tab=messages", "light"),
}


def traffic(broker: leveret.Broker, seconds: float) -> None:
    """Publish and consume for some seconds: orders, of which some fail, and reports that nobody takes."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", "topic", durable=True)
        channel.queue_declare("orders.failed", durable=True)
        failed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.failed"}
        for queue, key, arguments in (
            ("orders.incoming", "order.#", failed), ("orders.audit", "#", {}), ("mail.outgoing", "order.*.eu", {}),
        ):  # fmt: skip
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, "orders", key)
        channel.queue_declare("reports.nightly", durable=True)
        for number in range(40):
            channel.basic_publish("", "reports.nightly", b'{"report": %d}' % number)
        channel.basic_qos(prefetch_count=20)
        channel.basic_consume("orders.incoming", worked)
        channel.basic_consume("orders.audit", lambda *_: None, auto_ack=True)
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            for _ in range(12):
                number += 1
                body = (
                    b'{"order": %d, "customer": "\xc3\x9cnal", "lines": [{"sku": "A1", "quantity": 2}]}'
                    % number
                )
                properties = pika.BasicProperties(
                    "application/json", headers={"tenant": "eu"}, delivery_mode=2
                )
                channel.basic_publish("orders", f"order.new.{'eu' if number % 2 else 'us'}", body, properties)
            connection.process_data_events(0.1)


def worked(channel, method, _properties, _body) -> None:
    if method.delivery_tag % 50:
        channel.basic_ack(method.delivery_tag)
    else:
        channel.basic_reject(method.delivery_tag, requeue=False)


def main() -> int:
    """Write the pictures; returns 1 without a browser."""
    if CHROMIUM is None:
        print(NO_CHROMIUM, file=sys.stderr)
        return 1
    with leveret.Broker(management=True) as broker, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tabs = {}
        for name, (route, theme) in ROUTES.items():
            context = browser.new_context(viewport=WIDE, color_scheme=theme, reduced_motion="reduce")
            context.add_cookies([cookie_of(broker)])
            tabs[name] = context.new_page()
            if "?" not in route:
                Page(tabs[name], broker).open(route)
        traffic(broker, SECONDS)
        for name, (route, _) in ROUTES.items():
            if "?" in route:
                Page(tabs[name], broker).open(route)
                tabs[name].click("details.message >> nth=0")
            tabs[name].wait_for_timeout(1500)
            tabs[name].screenshot(path=FIGURES / f"{name}.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
