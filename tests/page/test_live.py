"""Pages that follow the broker: the live tail and the log; and the reports of its analysis."""

import json
import logging

import pytest
from doubles.fakes import configure
from services.browsing import ask, opened, publish

import leveret
from leveret.broker.server.server import Server


def send(broker, exchange: str, key: str, *bodies: str, **properties) -> None:
    """Publish messages by the API, which waits until they are routed."""
    for body in bodies:
        message = {
            "routing_key": key,
            "properties": properties,
            "payload": body,
            "payload_encoding": "string",
        }
        ask(broker, "POST", f"exchanges/%2F/{exchange}/publish", message)


def following(page, exchange: str, pattern: str = "", where: str = "") -> None:
    """Follow an exchange, and wait until the tail has begun."""
    page.api("PUT", f"exchanges/%2F/{exchange}", {"type": "topic"})
    page.open("tail")
    page.tab.select_option("[aria-label=Exchange]", exchange)
    page.tab.fill("[aria-label='Pattern of the routing key']", pattern)
    page.tab.fill("[aria-label=Condition]", where)
    page.tab.click("text=Follow")
    page.tab.wait_for_selector(f"text=Following {exchange}")


def test_a_tail_shows_what_is_published(page):
    """With where it went; a message opens to its properties and its body, and is not consumed."""
    publish(page.broker, "orders")
    page.api("PUT", "exchanges/%2F/shop", {"type": "topic"})
    page.api("POST", "bindings/%2F/e/shop/q/orders", {"routing_key": "order.#"})
    following(page, "shop")
    send(page.broker, "shop", "order.new", json.dumps({"order": 7}), headers={"tenant": "eu"})
    send(page.broker, "shop", "nobody", "lost")
    zone = page.tab.evaluate(
        "new Date().toLocaleTimeString(undefined, {timeZoneName: 'short'}).split(' ').at(-1)"
    )
    page.tab.wait_for_selector(f"[data-counts]:has-text('2 messages, times in {zone}')")
    page.tab.wait_for_selector("details.message:has-text('to no queue')")
    page.tab.click("details.message:has-text('order.new') > summary")
    page.tab.wait_for_selector("button:has-text('Go on')")
    page.tab.wait_for_selector("dd a:has-text('orders')")
    page.tab.wait_for_selector("dd:has-text('eu')")
    page.tab.wait_for_selector('pre:has-text("order")')

    assert 1 == page.api("GET", "queues/%2F/orders")["messages_ready"]


def test_a_tail_shows_only_what_one_asks_for(page):
    """By a pattern of the routing key, and by a condition."""
    following(page, "shop", "order.*", "headers.tenant == 'eu'")
    send(page.broker, "shop", "order.us", "us", headers={"tenant": "us"})
    send(page.broker, "shop", "mail.eu", "mail", headers={"tenant": "eu"})
    send(page.broker, "shop", "order.eu", "eu", headers={"tenant": "eu"})
    page.tab.wait_for_selector("details.message:has-text('order.eu')")

    assert 1 == page.tab.locator("details.message").count()
    assert "?pattern=order.*" in page.tab.url


def test_a_wrong_condition_is_said(page):
    """With the place of the mistake, and nothing is followed."""
    page.expected = ("400",)
    page.api("PUT", "exchanges/%2F/shop", {"type": "topic"})
    page.open("tail/%2F/shop?where=headers.")
    page.tab.wait_for_selector("main .error:not([hidden])")

    assert "Not following." == page.tab.inner_text("[data-counts]")


def test_a_pause_holds_the_list(page):
    """Messages are counted meanwhile, and shown when it goes on."""
    following(page, "shop")
    send(page.broker, "shop", "first", "1")
    page.tab.wait_for_selector("details.message:has-text('first')")
    page.tab.click("button:has-text('Pause')")
    send(page.broker, "shop", "second", "2")
    page.tab.wait_for_selector("[data-counts]:has-text('2 messages, 1 of them not shown, paused')")
    assert 1 == page.tab.locator("details.message").count()
    page.tab.click("button:has-text('Go on')")
    page.tab.wait_for_selector("details.message:has-text('second')")
    page.tab.click("button:has-text('Clear')")
    page.tab.wait_for_selector("details.message", state="detached")


def test_the_list_is_bounded(page):
    """The newest messages are in the document; all are counted."""
    following(page, "shop")
    publish(page.broker, "orders")
    page.api("POST", "bindings/%2F/e/shop/q/orders", {"routing_key": "#"})
    page.tab.click("button:has-text('Pause')")
    send(page.broker, "shop", "early", "0")
    send(page.broker, "shop", "late", *["x"] * 230)
    page.tab.wait_for_selector("[data-counts]:has-text('231 messages')")
    page.tab.click("button:has-text('Go on')")
    page.tab.wait_for_selector("[data-counts]:has-text('31 too fast to show')")

    assert 200 == page.tab.locator("details.message").count()
    assert 0 == page.tab.locator("details.message:has-text('early')").count()


def test_an_end_of_the_tail_is_said(page):
    """The deletion of its virtual host ends it."""
    page.api("PUT", "vhosts/shop", {})
    page.api("PUT", "permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    page.open("tail/shop/amq.topic")
    page.tab.wait_for_selector("text=Following amq.topic")
    page.api("DELETE", "vhosts/shop")
    page.tab.wait_for_selector("main .error:has-text('was deleted')")


@pytest.fixture
def log():
    """The logger of the broker, which lets information through."""
    logger = logging.getLogger("leveret.queue")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield logger
    logger.setLevel(before)


def test_the_log_is_followed(page, log):
    """New lines come by themselves; a level and a text choose some."""
    log.warning("early <b>bird</b>")
    page.open("logs")
    page.tab.wait_for_selector("tr:has-text('early <b>bird</b>') >> text=warning")
    log.info("worm")
    page.tab.wait_for_selector("tr:has-text('worm')")
    page.tab.fill("[data-filter]", "bird")
    page.tab.wait_for_selector("tr:has-text('worm')", state="detached")
    page.tab.fill("[data-filter]", "")
    page.tab.select_option("[aria-label=Level]", "warning")
    page.tab.wait_for_selector("tr:has-text('bird')")
    page.tab.wait_for_selector("tr:has-text('worm')", state="detached")


def test_a_pause_holds_the_log(page, log):
    """Lines that have come meanwhile are shown when it goes on."""
    page.open("logs")
    page.tab.click("button:has-text('Pause')")
    log.info("meanwhile")
    page.tab.wait_for_selector(".toolbar >> text=paused")
    assert 0 == page.tab.locator("tr:has-text('meanwhile')").count()
    page.tab.click("button:has-text('Go on')")
    page.tab.wait_for_selector("tr:has-text('meanwhile')")


def test_without_reports_the_way_to_them_is_shown(page):
    """The keys of the configuration and the command."""
    page.open("reports")
    page.tab.wait_for_selector("pre:has-text('export.dir')")

    assert "leveret analyze all --serve --input" in page.tab.inner_text("main pre")


def test_the_navigation_leads_to_the_reports(browser, monkeypatch):
    """With an address of reports, their entry is a link to it that tells nothing of this page, and so is the page."""
    address = "http://127.0.0.1:9/reports/"
    made = Server.__init__

    def with_reports(server: Server, *given: object) -> None:
        made(server, *given)
        configure(server, "management", reports_url=address)

    monkeypatch.setattr(Server, "__init__", with_reports)
    with leveret.Broker(management=True) as broker:
        for page in opened(browser, broker):
            page.open("reports")
            page.tab.wait_for_selector(f"main a[href='{address}']")
            entry = page.tab.wait_for_selector(f"#side a[href='{address}']")

            assert ("_blank", "noopener noreferrer") == (
                entry.get_attribute("target"),
                entry.get_attribute("rel"),
            )
