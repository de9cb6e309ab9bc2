"""Lists of many: groups, several at once, pauses; and what each line tells of queues, messages and clients."""

import time
from collections.abc import Iterator

import pika
import pytest
from services.browsing import Page, ask, cookie_of, declare_queues, opened, publish

import leveret

NAMED = "orders-worker"
LATER_MS = 4_102_444_800_000
"""The year 2100."""


def connected(page: Page, name: str = NAMED) -> pika.BlockingConnection:
    parameters = pika.URLParameters(page.broker.url)
    parameters.client_properties = {"connection_name": name}
    return pika.BlockingConnection(parameters)


def hold(page: Page, queue: str, *dues: int) -> None:
    """Publish messages that are held until these times."""
    page.api("PUT", f"queues/%2F/{queue}", {"durable": True, "arguments": {"x-allow-hold": True}})
    with connected(page) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for due in dues:
            channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"x-deliver-at": due}))


def ready(page: Page, queue: str) -> int:
    return page.api("GET", f"queues/%2F/{queue}")["messages_ready"]


def test_many_queues_are_grouped_by_their_prefix(page):
    """Groups are folded at first, and tell how many queues they have and how many need attention; the title, of all."""
    declare_queues(
        page.broker, [f"{prefix}.{number}" for prefix in ("billing", "shop") for number in range(50)]
    )
    publish(page.broker, "billing.7", "x")
    publish(page.broker, "alone")
    page.open("queues")
    page.tab.wait_for_selector(".page-head [role=status]:has-text('101 queues, 1 need attention')")
    page.tab.select_option("[aria-label=Groups]", "by prefix")
    page.tab.wait_for_selector("tr.group:has-text('billing.*: 50 queues, 1 need attention, 1 ready message')")
    page.tab.wait_for_selector("tr.group:has-text('others: 1 queue')")
    assert 0 == page.tab.locator("tr[data-key]").count()
    page.tab.click("tr.group button:has-text('billing.*')")
    page.tab.wait_for_selector("tr[data-key]:has-text('billing.7')")
    page.tab.reload()
    page.tab.wait_for_selector("tr.group:has-text('shop.*')")


def test_a_screen_shows_many_queues(page):
    """Twenty at least at 1440 x 1080, each in one line; the problem is beside the name, before the figures."""
    declare_queues(page.broker, [f"q{number:03}" for number in range(500)])
    page.open("queues")
    page.tab.set_viewport_size({"width": 1440, "height": 1080})
    page.tab.wait_for_selector("tr[data-key]")
    heights = page.tab.evaluate(
        "[...document.querySelectorAll('tr[data-key]')].map((each) => each.getBoundingClientRect().height)"
    )
    room = page.tab.evaluate("document.querySelector('.virtual').clientHeight")

    heads = [each.split(" ↓")[0] for each in page.tab.locator("thead th").all_inner_texts()]

    assert ["Name", "Needs attention", "Ready", "Unacked"] == heads[1:5]
    assert 36 >= max(heights)
    assert 20 <= room / max(heights)


def test_several_queues_are_changed_together(page):
    """Messages of the chosen ones move, a policy has their names; a purge and a deletion are confirmed by their number."""
    for queue in ("a.1", "a.2", "b"):
        publish(page.broker, queue, "x", "y")
    publish(page.broker, "archive")
    page.open("queues")
    for queue in ("a.1", "a.2"):
        page.tab.check(f"[aria-label='Choose {queue}']")
    page.tab.wait_for_selector("b:has-text('2 queues chosen')")
    page.tab.click("button:has-text('Move messages…')")
    page.tab.fill("dialog [name=destination]", "archive")
    page.tab.fill("dialog [name=limit]", "1")
    page.tab.click("dialog button:has-text('Count them')")
    page.tab.click("dialog button:has-text('Move 2 messages')")
    page.tab.wait_for_selector("text=2 messages moved.")
    assert (1, 1, 2) == (ready(page, "a.1"), ready(page, "a.2"), ready(page, "archive"))

    page.tab.check("[aria-label='Choose a.1']")
    page.tab.check("[aria-label='Choose a.2']")
    page.tab.click("button:has-text('New policy…')")
    assert r"^(a\.1|a\.2)$" == page.tab.input_value("dialog [name=pattern]")
    page.tab.fill("dialog [name=name]", "short")
    page.tab.select_option("dialog [aria-label='Add a setting']", "max-length")
    page.tab.fill("dialog [name=setting-max-length]", "9")
    page.tab.wait_for_selector("dialog >> text=Matches 2 queues now; changes 2 queues.")
    page.tab.click("dialog button:has-text('Save')")
    page.tab.wait_for_selector("tr:has-text('a.2') .badge:text-is('Lim')")

    page.tab.click("button:has-text('Purge…')")
    page.tab.wait_for_selector("dialog button.primary:has-text('Delete 2 messages')")
    page.tab.fill("dialog [name=typed]", "2 queues")
    page.tab.click("dialog button.primary")
    page.tab.wait_for_selector("text=2 queues are purged.")
    assert (0, 0, 2) == (ready(page, "a.1"), ready(page, "a.2"), ready(page, "b"))

    page.tab.wait_for_selector("b:has-text('chosen')", state="hidden")
    page.tab.check("[aria-label='Choose all']")
    page.tab.wait_for_selector("b:has-text('4 queues chosen')")
    page.tab.uncheck("[aria-label='Choose b']")
    page.tab.click("button:has-text('Delete…')")
    page.tab.fill("dialog [name=typed]", "3 queues")
    page.tab.click("dialog button.primary")
    page.tab.wait_for_selector("text=3 queues are deleted.")

    assert ["b"] == [each["name"] for each in page.api("GET", "queues?columns=name")]


def test_features_of_a_queue_are_chips(page):
    """On its page, and three in the list, as the abbreviations of RabbitMQ's page; each is explained."""
    arguments = {"x-message-ttl": 60_000, "x-max-priority": 3, "x-dead-letter-exchange": "amq.fanout"}
    page.api("PUT", "queues/%2F/work", {"durable": True, "arguments": arguments})
    for route, place in (("queues", "tr:has-text('work')"), ("queues/%2F/work", ".page-head")):
        page.open(route)
        page.tab.wait_for_selector(f"{place} >> .badge:text-is('TTL')")
        found = page.tab.eval_on_selector_all(
            f"{place} .badge[title]",
            "(all) => all.map((each) => [each.textContent, each.title])",
        )
        assert {"D": "durable", "TTL": "messages expire (message-ttl)"}.items() <= dict(found).items()
        if route == "queues":
            assert "DLX: dead letters go to an exchange" == dict(found)["+1"]
        else:
            assert {"D", "Pri", "TTL", "DLX"} <= dict(found).keys()


def test_the_page_can_be_paused(page):
    """Figures stay as they are while somebody reads them, and are of now when it goes on."""
    publish(page.broker, "orders", "1")
    page.open("queues")
    page.tab.wait_for_selector("tr:has-text('orders') td.number:has-text('1')")
    page.tab.click("#pause")
    page.tab.wait_for_selector("#state:has-text('Paused')")
    publish(page.broker, "orders", "2", "3")
    time.sleep(1.5)  # longer than the feed takes
    assert "1" == page.tab.inner_text("tr:has-text('orders') td[data-label=Ready]")
    page.tab.click("#pause[aria-pressed=true]")
    page.tab.wait_for_selector("tr:has-text('orders') td[data-label=Ready]:has-text('3')")
    page.tab.wait_for_selector("#state:has-text('Live')")


def test_the_overview_has_octets_and_what_is_unroutable(page):
    """A second; in the figures and in the chart."""
    page.open("overview")
    with connected(page) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + 20
        shown = ""
        while not (
            "KiB" in shown
            and page.tab.locator(".key:has-text('Unroutable') b:text-matches('^[1-9]')").count()
        ):
            assert time.monotonic() < deadline
            for _ in range(50):
                channel.basic_publish("amq.fanout", "", b"x" * 1000)
            connection.process_data_events(0)
            page.tab.wait_for_timeout(200)
            shown = page.tab.inner_text(".figure:has-text('Received /s') .value")


def test_queues_that_hold_messages_are_listed(page):
    """With the time of the next; messages are rescheduled, cancelled and released there."""
    hold(page, "later", LATER_MS, LATER_MS + 1000)
    publish(page.broker, "other", "x")
    page.open("held")
    page.tab.wait_for_selector("tr:has-text('later') td:has-text('2100')")
    assert 1 == page.tab.locator("tr[data-key]").count()
    page.tab.click("button:has-text('Reschedule…')")
    page.tab.fill("dialog [name=to]", "2101-02-03T04:05")
    page.tab.fill("dialog [name=limit]", "1")
    page.tab.click("dialog button:has-text('Count them')")
    page.tab.click("dialog button:has-text('Reschedule 1 message')")
    page.tab.wait_for_selector("text=1 message rescheduled.")
    page.tab.click("button:has-text('Cancel…')")
    page.tab.fill("dialog [name=limit]", "1")
    page.tab.click("dialog button:has-text('Count them')")
    page.tab.fill("dialog [name=typed]", "later")
    page.tab.click("dialog button:has-text('Cancel 1 message')")
    page.tab.wait_for_selector("tr:has-text('later') td:has-text('2101')")
    page.tab.click("button:has-text('Release…')")
    page.tab.click("dialog button:has-text('Count them')")
    page.tab.click("dialog button:has-text('Release 1 message')")
    page.tab.wait_for_selector("text=No queue holds messages")

    assert 1 == ready(page, "later")


def test_the_line_of_a_message_tells_its_death_or_its_time(page):
    """Without opening it."""
    hold(page, "later", LATER_MS)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 0}
    page.api("PUT", "queues/%2F/dead", {})
    page.api("PUT", "queues/%2F/work", {"arguments": arguments})
    with connected(page) as connection:
        connection.channel().basic_publish("", "work", b"x")
    page.open("queues/%2F/dead?tab=messages")
    page.tab.wait_for_selector("details.message > summary >> text=expired in work")
    page.open("queues/%2F/later?tab=messages")
    page.tab.wait_for_selector("details.message > summary >> text=/due .*2100/")
    page.tab.wait_for_selector("button:has-text('Release…')")


def test_a_time_beyond_all_calendars_is_its_year(page):
    """In the list of queues, on the page of the queue, and at the message."""
    hold(page, "later", 2**62)
    page.open("held")
    page.tab.wait_for_selector("tr:has-text('later') td:has-text('year 146140482')")
    page.open("queues/%2F/later")
    page.tab.wait_for_selector("dd:has-text('1, the next until year 146140482')")
    page.tab.wait_for_selector("text=from year 146140482 to year 146140482")
    page.open("queues/%2F/later?tab=messages")
    page.tab.wait_for_selector("details.message > summary >> text=/due year 146140482/")


def test_clients_have_the_names_that_they_give_themselves(page):
    """The page of a connection has it as its title; channels and consumers name it, too."""
    publish(page.broker, "work")
    with connected(page) as connection:
        channel = connection.channel()
        channel.basic_consume("work", lambda *_: None)
        for route, place in (
            ("connections", "tr a"), ("channels", "tr a"), ("consumers", "tr a"), ("queues/%2F/work", "[aria-label=Consumers] a"),
        ):  # fmt: skip
            page.open(route)
            page.tab.wait_for_selector(f"{place}:has-text('{NAMED}')")
        page.tab.click(f"a:has-text('{NAMED}')")
        page.tab.wait_for_selector(f"h1:has-text('{NAMED}')")
        page.tab.wait_for_selector("dt:has-text('Connection')")
        assert page.tab.inner_text(".crumbs").endswith(" Connections")


def test_the_tail_begins_with_the_busiest_exchange(page):
    """Its fields say what they are."""
    for name in ("aaa", "busy"):
        page.api("PUT", f"exchanges/%2F/{name}", {"type": "fanout"})
    with connected(page) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + 20
        while (
            not page.api("GET", "exchanges/%2F/busy")
            .get("message_stats", {})
            .get("publish_in_details", {})
            .get("rate")
        ):
            assert time.monotonic() < deadline
            channel.basic_publish("busy", "", b"x")
            connection.process_data_events(0.3)
        page.open("tail")

        assert "busy" == page.tab.input_value("[aria-label=Exchange]")
        assert {"Exchange", "Pattern of the routing key", "Condition"} <= set(
            page.tab.locator("form label > span").all_inner_texts()
        )


@pytest.fixture
def watcher(browser, shared_broker) -> Iterator[Page]:
    ask(shared_broker, "PUT", "users/mo", {"password": "x", "tags": "monitoring"})
    for page in opened(browser, shared_broker, logged_in=False):
        page.tab.context.add_cookies([cookie_of(shared_broker, "mo", "x")])
        yield page


@pytest.mark.parametrize("name", ["users", "definitions", "tail"])
def test_a_page_that_needs_another_tag_says_so(watcher, name):
    """In one sentence, without a button that would fail, and it asks the broker nothing."""
    watcher.open(name)

    assert "it needs the tag administrator" in watcher.tab.inner_text("main .note")
    assert 0 == watcher.tab.locator("main button").count()


def test_reports_have_their_text_inside_the_panel(page):
    """With a margin."""
    page.open("reports")
    left, edge = (page.tab.locator(each).bounding_box()["x"] for each in ("main pre", "main .panel"))

    assert 10 < left - edge


def test_topic_permissions_are_given_and_taken(page):
    """A row for each user and exchange."""
    page.api("PUT", "users/ann", {"password": "x", "tags": ""})
    page.open("users")
    page.tab.wait_for_selector("text=No user is restricted")
    page.tab.click("text=New topic permission")
    page.tab.select_option("dialog [name=user]", "ann")
    page.tab.select_option("dialog [name=vhost]", "/")
    page.tab.fill("dialog [name=write]", "^eu[.]")
    page.tab.click("dialog button:has-text('Save')")
    page.tab.wait_for_selector("[aria-label='Topic permissions'] tr:has-text('^eu[.]')")
    page.tab.click("[aria-label='Topic permissions'] button:has-text('Edit')")
    page.tab.fill("dialog [name=write]", "^us[.]")
    page.tab.click("dialog button:has-text('Save')")
    page.tab.wait_for_selector("[aria-label='Topic permissions'] tr:has-text('^us[.]')")
    (row,) = page.api("GET", "topic-permissions/%2F/ann")
    assert ("amq.topic", "^us[.]", ".*") == (row["exchange"], row["write"], row["read"])
    page.tab.click("[aria-label='Topic permissions'] button:has-text('Remove')")
    page.tab.wait_for_selector("text=No user is restricted")


def test_permissions_say_what_they_are(page):
    """Each pattern has the name of its right."""
    page.open("users")

    assert ["configure .*", "write .*", "read .*"] == page.tab.inner_text(
        "[aria-label='guest in /: .* · .* · .*']"
    ).split("\n")


def test_a_virtual_host_is_protected(page):
    """It is not deleted until it is no longer."""
    page.expected = ("412",)
    page.api("PUT", "vhosts/shop", {})
    page.open("vhosts")
    page.tab.click("tr:has-text('shop') >> text=Protect")
    page.tab.click("tr:has-text('shop') >> text=Unprotect")
    page.tab.wait_for_selector("tr:has-text('shop') >> button:text-is('Protect')")
    assert not page.api("GET", "vhosts/shop")["protected_from_deletion"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_data_directory_is_named(browser, tmp_path, is_stored):
    """About says where the data are, or that the broker keeps everything in memory."""
    with leveret.Broker(management=True, data_dir=tmp_path if is_stored else None) as broker:
        for page in opened(browser, broker):
            page.open("about")
            text = str(tmp_path) if is_stored else "none: this broker keeps everything in memory"
            page.tab.wait_for_selector(f"dd:has-text('{text}')")


def test_the_features_that_rabbitmq_deprecates_are_shown(page):
    """With what this broker does about each."""
    page.open("about")
    page.tab.wait_for_selector(".badge:has-text('classic_queue_mirroring: denied')")
