"""Journeys through the page."""

import json
from urllib.parse import urlsplit

import pika
import pytest
from services.browsing import declare_queues, publish

MANY = 10_000
HEAP_MIB = 80


def test_queues_move_while_one_looks(page):
    """A message published elsewhere is counted within moments, without a click."""
    page.open("queues")
    page.tab.wait_for_selector("text=There are no queues yet")
    publish(page.broker, "orders", "one", "two")
    page.tab.wait_for_selector("tr:has-text('orders') td.number:has-text('2')")

    assert "no consumer" in page.tab.inner_text("tr:has-text('orders')")


def test_a_purge_is_confirmed_by_the_name(page):
    """The button is dead until the name is typed; it says how many messages will be deleted."""
    publish(page.broker, "orders", "a", "b", "c")
    page.open("queues/%2F/orders")
    page.tab.click("button:has-text('Purge')")
    button = page.tab.locator("dialog button.primary")
    assert "Delete 3 messages" == button.inner_text()
    assert button.is_disabled()
    page.tab.fill("dialog [name=typed]", "order")
    assert button.is_disabled()
    page.tab.fill("dialog [name=typed]", "orders")
    button.click()
    page.tab.wait_for_selector("text=orders is purged")

    assert 0 == page.api("GET", "queues/%2F/orders")["messages_ready"]


def test_a_queue_is_paused_and_resumed_by_one_button(page):
    """It says what it would do now, also when the page of a paused queue is opened."""
    publish(page.broker, "orders", "a")
    page.open("queues/%2F/orders")
    page.tab.click("button:text-is('Pause')")
    page.tab.wait_for_selector("button:text-is('Resume')")
    assert "paused" == page.api("GET", "queues/%2F/orders")["state"]

    page.tab.reload()
    page.tab.click("button:text-is('Resume')")
    page.tab.wait_for_selector("button:text-is('Pause')")
    assert "paused" != page.api("GET", "queues/%2F/orders")["state"]


def test_escape_gives_up(page):
    """Nothing is deleted, and the focus is where it was."""
    publish(page.broker, "orders", "a")
    page.open("queues/%2F/orders")
    page.tab.click("button:has-text('Delete')")
    page.tab.wait_for_selector("dialog")
    page.tab.keyboard.press("Escape")
    page.tab.wait_for_selector("dialog", state="detached")

    assert "Delete" == page.tab.evaluate("document.activeElement.textContent")
    assert 1 == page.api("GET", "queues/%2F/orders")["messages_ready"]


def test_ten_thousand_queues(own_page):
    """Few rows are in the document, the filter finds those that it should, and the heap stays small."""
    declare_queues(own_page.broker, [f"tenant-{number:05}" for number in range(MANY)])
    own_page.open("queues")
    own_page.until("/^10.000 queues/.test(document.querySelector('.page-head [role=status]').textContent)")
    assert 60 > own_page.tab.locator("tr[data-key]").count()
    own_page.tab.fill("[data-filter]", "0999")
    own_page.tab.wait_for_selector(".page-head [role=status]:has-text('11 of 10')")

    client = own_page.tab.context.new_cdp_session(own_page.tab)
    client.send("HeapProfiler.collectGarbage")
    assert HEAP_MIB << 20 > client.send("Runtime.getHeapUsage")["usedSize"]


def test_rows_in_sight_are_in_the_document(page):
    """Scrolling shows the others."""
    declare_queues(page.broker, [f"q{number:03}" for number in range(500)])
    page.open("queues")
    page.tab.click("thead button:has-text('Name')")
    page.tab.wait_for_selector("th:has-text('q000')")
    page.tab.evaluate("document.querySelector('.virtual').scrollTop = 1e9")

    page.tab.wait_for_selector("th:has-text('q499')")


def test_without_a_mouse(page):
    """A queue is made, a message published, looked at and moved by keys alone."""
    keys, tab = page.tab.keyboard, page.tab
    publish(page.broker, "archive")
    page.open("queues")
    tab.focus("text=New queue")
    keys.press("Enter")
    tab.wait_for_selector("dialog")
    keys.type("orders")
    keys.press("Enter")
    tab.wait_for_selector("h1:has-text('orders')")
    focus_by_tab(tab, "Publish")
    keys.press("Enter")
    tab.wait_for_selector("dialog")
    tab.focus("dialog [name=payload]")
    keys.press("Control+A")
    keys.type('{"order": 1}')
    keys.press("Tab")
    focus_by_tab(tab, "Publish", inside="dialog")
    keys.press("Enter")
    tab.wait_for_selector("dialog", state="detached")
    focus_by_tab(tab, "Messages", inside=".tabs")
    keys.press("Enter")
    tab.wait_for_selector("details.message")
    keys.press("j")
    keys.press("Enter")
    tab.wait_for_selector('pre:has-text("order")')
    focus_by_tab(tab, "Move…")
    keys.press("Enter")
    tab.wait_for_selector("dialog [name=destination]")
    keys.type("archive")
    keys.press("Enter")
    tab.wait_for_selector("dialog button:has-text('Move 1 message')")
    focus_by_tab(tab, "Move 1 message", inside="dialog")
    keys.press("Enter")
    tab.wait_for_selector("text=1 message moved.")

    assert 1 == page.api("GET", "queues/%2F/archive")["messages_ready"]


def focus_by_tab(tab, text: str, inside: str = "main") -> None:
    """Press Tab until something with this text has the focus."""
    for _ in range(80):
        found = tab.evaluate(
            "(inside) => document.activeElement?.closest(inside) ? document.activeElement.textContent : ''",
            inside,
        )
        if found == text:
            return
        tab.keyboard.press("Tab")
    pytest.fail(f"{text} cannot be reached by the keyboard")


def test_keys_lead_to_pages(page):
    """A question mark shows them."""
    page.open("overview")
    page.tab.keyboard.press("g")
    page.tab.keyboard.press("q")
    page.tab.wait_for_selector("h1:has-text('Queues')")
    page.tab.keyboard.press("/")
    assert "search" == page.tab.evaluate("document.activeElement.type")
    page.tab.keyboard.press("Escape")
    page.tab.keyboard.press("?")
    page.tab.wait_for_selector("dialog:has-text('Dead letters')")


def test_a_worker_has_died(page):
    """The queue grows, the page says so and what to do; messages are looked at, dead letters retried."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with pika.BlockingConnection(pika.URLParameters(page.broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        channel.queue_declare("work", arguments=arguments)
        for number in range(5):
            channel.basic_publish("", "work", b'{"n": %d}' % number)
        for method, _, _ in channel.consume("work", inactivity_timeout=5):
            channel.basic_reject(method.delivery_tag, requeue=False)
            if method.delivery_tag == 3:
                break
        channel.cancel()
    page.open("overview")
    page.tab.wait_for_selector("[aria-label='Queues that need attention'] >> text=no consumer")
    page.tab.click("[aria-label='Queues that need attention'] a:has-text('work')")
    page.tab.wait_for_selector("h1:has-text('work')")
    page.tab.wait_for_selector("text=is the worker running")
    page.open("dead-letters")
    page.tab.wait_for_selector("td:has-text('rejected 3')")
    page.tab.click("button:has-text('Retry…')")
    page.tab.click("dialog button:has-text('Count them')")
    page.tab.click("dialog button:has-text('Retry 3 messages')")
    page.tab.wait_for_selector("text=3 messages put back where they died.")

    assert 5 == page.api("GET", "queues/%2F/work")["messages_ready"]
    page.tab.wait_for_selector("text=No dead letters")


def test_a_policy_says_what_it_would_change(page):
    """While it is typed, and when a queue appears meanwhile; nothing is filled in before, nor anything changed."""
    publish(page.broker, "tmp.a", "x")
    publish(page.broker, "orders", "x")
    page.open("policies")
    page.tab.click("text=New policy")
    assert "" == page.tab.input_value("dialog [name=pattern]")
    page.tab.fill("dialog [name=name]", "short")
    page.tab.fill("dialog [name=pattern]", "^tmp")
    page.tab.select_option("dialog [aria-label='Add a setting']", "message-ttl")
    page.tab.fill("dialog [name=setting-message-ttl]", "5000")
    page.tab.wait_for_selector("dialog >> text=Matches 1 queue now; changes 1 queue.")
    page.tab.wait_for_selector("dialog li:has-text('tmp.a: message-ttl: not set → 5000')")
    publish(page.broker, "tmp.b", "x")
    page.tab.wait_for_selector("dialog >> text=Matches 2 queues now; changes 2 queues.")
    page.expected = ("400",)
    page.tab.fill("dialog [name=pattern]", "(")
    page.tab.wait_for_selector("dialog >> text=should be regular expression")
    page.tab.fill("dialog [name=pattern]", "^tmp")
    page.tab.click("dialog button:has-text('Save')")
    page.tab.wait_for_selector("th:has-text('short')")

    assert "short" == page.api("GET", "queues/%2F/tmp.a")["policy"]


def test_a_policy_that_would_delete_messages_says_so_in_red(page):
    """Their number, and the queue that would lose them; no operator policy is different."""
    publish(page.broker, "tmp.a", "x", "y", "z")
    page.open("operator-policies")
    page.tab.click("text=New operator policy")
    page.tab.fill("dialog [name=name]", "cap")
    page.tab.fill("dialog [name=pattern]", "^tmp")
    page.tab.select_option("dialog [aria-label='Add a setting']", "max-length")
    page.tab.fill("dialog [name=setting-max-length]", "1")
    page.tab.wait_for_selector("dialog [role=alert].error:has-text('Deletes 2 messages at once.')")
    page.tab.wait_for_selector("dialog li:has-text('tmp.a') >> .badge.bad:has-text('2 deleted')")
    assert 3 == page.api("GET", "queues/%2F/tmp.a")["messages_ready"]
    page.tab.click("dialog button:has-text('Save')")
    page.tab.wait_for_selector("th:has-text('cap')")
    page.tab.click("tr:has-text('cap') >> text=Delete")
    page.tab.wait_for_selector("dialog li:has-text('tmp.a: max-length: 1 → not set')")
    page.tab.click("dialog button.primary")
    page.tab.wait_for_selector("text=There are no operator policies")

    assert 1 == page.api("GET", "queues/%2F/tmp.a")["messages_ready"]


def test_a_new_queue_has_any_argument(page):
    """The confirm mode is there at once, the others are chosen; those of another type go when the type changes."""
    page.open("queues")
    page.tab.click("text=New queue")
    page.tab.fill("dialog [name=name]", "work")
    page.tab.select_option("dialog [name=setting-confirm-mode]", "consumer-ack")
    page.tab.select_option("dialog [aria-label='Add a setting']", "max-priority")
    page.tab.fill("dialog [name=setting-max-priority]", "300")
    page.tab.click("dialog button:has-text('Create')")
    assert page.tab.locator("dialog").is_visible()  # 255 at most, which the browser says
    page.tab.fill("dialog [name=setting-max-priority]", "3")
    page.tab.select_option("dialog [aria-label='Add a setting']", "single-active-consumer")
    page.tab.click("dialog button:has-text('Create')")
    page.tab.wait_for_selector("h1:has-text('work')")
    found = page.api("GET", "queues/%2F/work")["arguments"]
    assert {"x-confirm-mode": "consumer-ack", "x-max-priority": 3, "x-single-active-consumer": True} == found

    page.open("queues")
    page.tab.click("text=New queue")
    page.tab.fill("dialog [name=name]", "safe")
    page.tab.select_option("dialog [name=type]", "quorum")
    page.tab.wait_for_selector("dialog [name=setting-confirm-mode]", state="detached")
    page.tab.select_option("dialog [aria-label='Add a setting']", "dead-letter-routing-key")
    page.tab.fill("dialog [name=setting-dead-letter-routing-key]", "work")
    page.tab.click("dialog button:has-text('Create')")
    page.tab.wait_for_selector("h1:has-text('safe')")
    found = page.api("GET", "queues/%2F/safe")["arguments"]
    assert {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "work",
    } == found


def test_a_shovel_is_made_and_ended(page):
    """Its messages arrive; a reason is shown if it cannot run."""
    publish(page.broker, "here", "a", "b")
    publish(page.broker, "there")
    page.open("shovels")
    page.tab.click("text=New shovel")
    for field, value in {"name": "mover", "src-uri": "amqp://", "src-queue": "here", "dest-uri": "amqp://", "dest-queue": "there"}.items():  # fmt: skip
        page.tab.fill(f"dialog [name={field}]", value)
    page.tab.click("dialog button:has-text('Start')")
    page.tab.wait_for_selector("tr:has-text('mover') >> text=running")
    page.tab.wait_for_selector("tr:has-text('mover') >> td.number:has-text('2')")
    (shovel,) = page.api("GET", "shovels")
    shown = page.tab.evaluate(
        "(time) => new Date(time).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'long', hour12: false})",
        shovel["state_since"],
    )
    page.tab.wait_for_selector(f"tr:has-text('mover') >> td:has-text('{shown}')")  # with its zone
    page.tab.click("tr:has-text('mover') >> text=Restart")
    page.tab.wait_for_selector("text=mover is restarted.")
    page.tab.click("tr:has-text('mover') >> text=Delete")
    page.tab.click("dialog button:has-text('Delete')")
    page.tab.wait_for_selector("text=There are no shovels")

    assert 2 == page.api("GET", "queues/%2F/there")["messages_ready"]


def test_where_a_message_would_go(page):
    """A key shows the queues that it reaches, and that it reaches none."""
    page.api("PUT", "exchanges/%2F/orders", {"type": "topic"})
    page.api("PUT", "queues/%2F/eu", {})
    page.api("POST", "bindings/%2F/e/orders/q/eu", {"routing_key": "*.eu"})
    page.open("exchanges/%2F/orders")
    page.tab.fill("[name=key]", "new.eu")
    page.tab.click("text=Show")
    page.tab.wait_for_selector("[aria-label='Queues that the message reaches'] >> text=eu")
    page.tab.fill("[name=key]", "new.us")
    page.tab.click("text=Show")
    page.tab.wait_for_selector("text=Nowhere: no binding matches")


def test_a_binding_is_removed(page):
    """Also one whose key has characters that addresses do not have."""
    page.api("PUT", "exchanges/%2F/orders", {"type": "topic"})
    page.api("PUT", "queues/%2F/eu", {})
    page.api("POST", "bindings/%2F/e/orders/q/eu", {"routing_key": "a/b.#"})
    page.open("queues/%2F/eu?tab=bindings")
    page.tab.click("tr:has-text('a/b.#') button:has-text('Remove')")
    page.tab.click("dialog button:has-text('Remove')")
    page.tab.wait_for_selector("text=The binding is removed.")

    assert [""] == [each["source"] for each in page.api("GET", "queues/%2F/eu/bindings")]


def test_users_get_permissions(page):
    """In a cell of the matrix."""
    page.open("users")
    page.tab.click("text=New user")
    page.tab.fill("dialog [name=name]", "ann")
    page.tab.fill("dialog [name=password]", "x")
    page.tab.click("dialog button:has-text('Save')")
    page.tab.click("[aria-label='ann in /: no access']")
    page.tab.fill("dialog [name=configure]", "^ann")
    page.tab.click("dialog button:has-text('Save')")
    page.tab.wait_for_selector("[aria-label='ann in /: ^ann · .* · .*']")

    assert "^ann" == page.api("GET", "permissions/%2F/ann")["configure"]


def test_definitions_are_compared_first(page, tmp_path):
    """One sees what an import would change before it does."""
    file = tmp_path / "definitions.json"
    file.write_text('{"vhosts": [{"name": "<b>new</b>"}]}', encoding="utf-8")
    page.open("definitions")
    page.tab.set_input_files("input[type=file]", str(file))
    page.tab.wait_for_selector("text=vhosts: 1 added")
    assert ["/"] == [each["name"] for each in page.api("GET", "vhosts")]
    page.tab.click("button:has-text('Import')")
    page.tab.click("dialog button:has-text('Import')")
    page.tab.wait_for_selector("text=Imported: vhosts: 1 added")

    assert ["/", "<b>new</b>"] == sorted(each["name"] for each in page.api("GET", "vhosts"))


def test_definitions_that_cannot_exist_are_left_out_on_request(page, tmp_path):
    """The reason is shown, and what is left out is listed before anything changes."""
    file = tmp_path / "definitions.json"
    far = {"name": "far", "vhost": "/", "type": "x-federation-upstream"}
    work = {"name": "work", "vhost": "/"}
    file.write_text(json.dumps({"queues": [work], "exchanges": [far]}), encoding="utf-8")
    page.open("definitions")
    page.tab.set_input_files("input[type=file]", str(file))
    page.tab.wait_for_selector("li:has-text('unknown exchange type')")
    assert not page.tab.is_visible("button:has-text('Import')")
    page.tab.click("label:has-text('Leave out')")
    page.tab.wait_for_selector("text=Left out:")
    page.tab.click("button:has-text('Import')")
    page.tab.click("dialog button:has-text('Import')")
    page.tab.wait_for_selector("text=/Imported: .*1 skipped/")

    assert ["work"] == [each["name"] for each in page.api("GET", "queues")]


def test_a_message_is_published_from_a_template(page):
    """It is kept by its name in this browser, and fills the form again; another one can be forgotten."""
    publish(page.broker, "orders")
    page.open("queues/%2F/orders")
    page.tab.click("button:has-text('Publish')")
    page.tab.fill("dialog [name=payload]", "from a template")
    page.tab.fill("[aria-label='Name of the template']", "mine")
    page.tab.click("dialog button:has-text('Keep')")
    page.tab.fill("dialog [name=payload]", "something else")
    page.tab.click("dialog button:has-text('Cancel')")
    page.tab.reload()
    page.tab.click("button:has-text('Publish')")
    page.tab.select_option("[aria-label=Template]", "mine")
    assert "from a template" == page.tab.input_value("dialog [name=payload]")
    page.tab.click("dialog button.primary")
    page.tab.wait_for_selector("text=1 message published.")
    page.tab.click("button:has-text('Publish')")
    page.tab.select_option("[aria-label=Template]", "mine")
    page.tab.click("dialog button:has-text('Forget')")
    page.tab.wait_for_selector("[aria-label=Template] >> text=No templates yet", state="attached")
    (message,) = page.api("GET", "leveret/queues/%2F/orders/messages")["messages"]

    assert "from a template" == message["payload"]


def test_queues_are_grouped_by_virtual_host(page):
    """A group says how much there is, and can be folded."""
    page.api("PUT", "vhosts/shop", {})
    page.api("PUT", "permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    for vhost in ("%2F", "shop"):
        page.api("PUT", f"queues/{vhost}/orders", {})
    page.open("queues")
    page.tab.select_option("[aria-label=Groups]", "by virtual host")
    page.tab.click("tr.group button:has-text('shop: 1 queue, 0 ready messages')")
    page.until("document.querySelectorAll('tr[data-key]').length === 1")
    page.tab.click("tr.group button:has-text('shop')")
    page.until("document.querySelectorAll('tr[data-key]').length === 2")


def test_who_holds_messages_and_who_waits_for_them_is_shown(page):
    """The age of the oldest delivery of each consumer, and the promises of a queue that confirms on acknowledgement."""
    page.api("PUT", "queues/%2F/work", {"durable": True, "arguments": {"x-confirm-mode": "consumer-ack"}})
    with pika.BlockingConnection(pika.URLParameters(page.broker.url)) as connection:
        publisher = connection.channel()
        publisher.basic_publish("", "work", b"not promised")
        channel = connection.channel()
        channel.basic_consume("work", lambda *_: None, consumer_tag="worker")
        connection.process_data_events(1)
        page.open("queues/%2F/work")
        page.tab.wait_for_selector("dt:has-text('Open promises')")
        page.tab.wait_for_selector("dd:has-text('0 messages whose publishers wait')")
        page.tab.wait_for_selector(r"tr:has-text('worker') >> text=/^\d.* (ms|s)$/")


def test_held_messages_are_counted_with_their_time(page):
    """The page of a queue says how many it holds, and until when; a strip has those of each hour, a list all in order."""
    page.api("PUT", "queues/%2F/later", {"durable": True, "arguments": {"x-allow-hold": True}})
    with pika.BlockingConnection(pika.URLParameters(page.broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for hours in (3, 0, 1, 0):  # of the first day of 2100
            due = 4_102_444_800_000 + 3_600_000 * hours
            channel.basic_publish("", "later", b"x", pika.BasicProperties(headers={"x-deliver-at": due}))
    page.open("queues/%2F/later")
    page.tab.wait_for_selector("dt:has-text('Held until their time')")
    page.tab.wait_for_selector("dd:has-text('4, the next until 2100-01-01 00:00:00 UTC')")
    strip = page.tab.wait_for_selector(
        "[aria-label='The next 4 held messages by the hour in which they are due']"
    )
    parts = strip.query_selector_all("span")
    told = [part.get_attribute("title") for part in parts]
    assert [f"2100-01-01 0{hour}:00:00 UTC: {count}" for hour, count in enumerate((2, 1, 0, 1))] == told
    assert ["1", "0.625", "0", "0.625"] == [part.evaluate("each => each.style.opacity") for part in parts]
    page.open("queues/%2F/later?tab=messages")
    page.tab.wait_for_selector("details.message:nth-of-type(4)")
    lines = page.tab.locator("details.message > summary").all_inner_texts()
    assert [0, 0, 1, 3] == [int(line.split("2100, ")[1][:2]) for line in lines]


def test_what_reaches_no_queue_is_counted(page):
    """On the overview, for those who miss messages; an exchange shows what comes in and goes out over time."""
    with pika.BlockingConnection(pika.URLParameters(page.broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("lost", "fanout")
        channel.basic_publish("lost", "", b"x")
        page.open("overview")
        page.tab.wait_for_selector("dd:text-matches('returned, [1-9]')")
    page.open("exchanges/%2F/lost")
    page.tab.wait_for_selector("figure >> text=Put into queues")


def test_every_page_says_the_same_of_a_queue_with_dead_letters(page):
    """Overview, list and page of the queue call it dead letters, and none of them asks for its worker."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 0}
    with pika.BlockingConnection(pika.URLParameters(page.broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        channel.queue_declare("work", arguments=arguments)
        channel.basic_publish("", "work", b"1")
    for route, place in (
        ("overview", "[aria-label='Queues that need attention'] tr:has-text('dead')"),
        ("queues", "tr:has-text('dead')"),
        ("queues/%2F/dead", "p.error"),
    ):
        page.open(route)
        page.tab.wait_for_selector(f"{place} >> text=dead letters")
        assert "no consumer" not in page.tab.inner_text(place)


def test_a_dialog_does_not_stay_over_the_next_page(page):
    """Going back closes what was asked on the page that is left."""
    publish(page.broker, "orders", "a")
    page.open("overview")
    page.open("queues/%2F/orders")
    page.tab.click("button:has-text('Purge')")
    page.tab.wait_for_selector("dialog")
    page.tab.go_back()
    page.tab.wait_for_selector("h1:has-text('Overview')")

    assert 0 == page.tab.locator("dialog").count()


def test_programs_that_are_shown_reach_this_broker(page):
    """The first program has the port of this broker, not the usual one; a virtual host shows its type."""
    page.open("queues")
    port = urlsplit(page.broker.url).port
    page.tab.wait_for_selector(f"pre:has-text(', {port})')")
    page.open("vhosts")
    page.tab.wait_for_selector("tr:has-text('/') td:has-text('classic')")
