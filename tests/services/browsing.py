"""Pages of the management listener in a browser, and a broker with hostile names in everything."""

import base64
import json
import shutil
import time
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pika

import leveret

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 30.0
NO_CHROMIUM = "there is no browser: install Debian's package chromium"
WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 400, "height": 800}
SHOWN = """(() => {
    const main = document.querySelector('main');
    return main.dataset.route === location.hash && !main.ariaBusy && main.querySelector('h1')
        && !/Reading( queues)?…/.test(main.textContent);
})()"""
"""Expression that is true once the page that the address names has been filled."""
HOSTILE = (
    "<script>window.ran=1</script>", "<img src=x onerror=window.ran=1>", '"><svg onload=window.ran=1>', "'-window.ran=1-'",
    "javascript:window.ran=1", "{{constructor.constructor('window.ran=1')()}}", "${window.ran=1}", "a/b?c#d&e=f", "%2F%2e%2e%00",
    "../../../etc/passwd", "\u202egnp.exe", "\u0000\u0007", " leading and trailing ", "tab\tin it", "__proto__", "constructor",
    "😀" * 20, "<!--", "</title><script>window.ran=1</script>", "x" * 200,
)  # fmt: skip
"""Names that are programs, markup, paths and traps where somebody forgets to escape."""


class Page:
    """A page of the browser with the broker that it shows.

    Attributes:
        tab: the page of Playwright.
        broker: the broker.
        errors: texts of the console, uncaught errors, and violations of the policy.
        foreign: addresses outside the listener that were asked for.

    """

    def __init__(self, tab: Any, broker: leveret.Broker) -> None:
        self.tab = tab
        self.broker = broker
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.base = base_of(broker)
        tab.on("console", lambda message: self._said(message.type, message.text))
        tab.on("pageerror", lambda error: self._said("error", str(error)))
        tab.on("request", self._asked)

    def _said(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.errors.append(text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.foreign.append(request.url)

    def unexpected(self) -> list[str]:
        """Return the errors that the test does not expect."""
        return [text for text in self.errors if not any(each in text for each in self.expected)]

    def open(self, route: str) -> None:
        """Show a page, and wait until it has been filled."""
        self.tab.goto(f"{self.base}/#/{route}")
        self.until(SHOWN)

    def until(self, expression: str) -> None:
        """Wait until an expression holds. Playwright's own way evaluates texts in the page, which its policy forbids."""
        deadline = time.monotonic() + SECONDS
        while not self.tab.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.tab.wait_for_timeout(50)

    def login(self, user: str = "guest", password: str = "guest") -> None:
        self.tab.goto(f"{self.base}/")
        self.tab.fill("[name=username]", user)
        self.tab.fill("[name=password]", password)
        self.tab.click("#login button")

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the broker, beside the page."""
        return ask(self.broker, method, path, body)


def quoted(name: str) -> str:
    return quote(name, safe="")


def base_of(broker: leveret.Broker) -> str:
    parts = urlsplit(broker.management_url)
    return f"http://{parts.hostname}:{parts.port}"


def ask(broker: leveret.Broker, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the API."""
    login = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(
        f"{base_of(broker)}/api/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Basic {login}"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        octets = answer.read()
    return json.loads(octets) if octets else None


def publish(broker: leveret.Broker, queue: str, *bodies: str, **properties: Any) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        for body in bodies:
            channel.basic_publish("", queue, body.encode(), pika.BasicProperties(**properties))


def cookie_of(broker: leveret.Broker, user: str = "guest", password: str = "guest") -> dict[str, Any]:
    body = f"username={user}&password={password}".encode()
    request = urllib.request.Request(f"{base_of(broker)}/api/login", method="POST", data=body)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return {"name": name, "value": value, "url": base_of(broker)}


def context_of(browser: Any, broker: leveret.Broker, *, logged_in: bool = True, **settings: Any) -> Any:
    """Return a browser without history for a broker."""
    context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **settings})
    context.set_default_timeout(1000.0 * SECONDS)
    if logged_in:
        context.add_cookies([cookie_of(broker)])
    return context


def shown_in(context: Any, broker: leveret.Broker) -> Iterator[Page]:
    """Open a page; at its end nothing unexpected must have been said or asked for, and nothing is remembered."""
    page = Page(context.new_page(), broker)
    try:
        yield page
        assert [] == page.unexpected()
        assert [] == page.foreign
        if page.tab.url.startswith(page.base):
            page.tab.evaluate("localStorage.clear()")
    finally:
        page.tab.close()


def opened(
    browser: Any, broker: leveret.Broker, *, logged_in: bool = True, **settings: Any
) -> Iterator[Page]:
    context = context_of(browser, broker, logged_in=logged_in, **settings)
    try:
        yield from shown_in(context, broker)
    finally:
        context.close()


def cleaned(broker: leveret.Broker) -> None:
    """Delete all that tests have declared."""
    for each in ask(broker, "GET", "vhosts?columns=name"):
        if each["name"] != "/":
            ask(broker, "DELETE", f"vhosts/{quoted(each['name'])}")
    for each in ask(broker, "GET", "users?columns=name"):
        if each["name"] != "guest":
            ask(broker, "DELETE", f"users/{quoted(each['name'])}")
    for each in ask(broker, "GET", "policies?columns=name"):
        ask(broker, "DELETE", f"policies/%2F/{quoted(each['name'])}")
    for each in ask(broker, "GET", "exchanges?columns=name"):
        if each["name"] and not each["name"].startswith("amq."):
            ask(broker, "DELETE", f"exchanges/%2F/{quoted(each['name'])}")
    for each in ask(broker, "GET", "queues?columns=name"):
        ask(broker, "DELETE", f"queues/%2F/{quoted(each['name'])}")


def declare_queues(broker: leveret.Broker, names: Iterable[str]) -> None:
    """Declare many queues at once."""
    queues = [
        {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": {}} for name in names
    ]
    ask(broker, "POST", "definitions", {"queues": queues})


def fill(broker: leveret.Broker, channel: Any, number: int, name: str) -> None:
    properties = pika.BasicProperties(
        headers={name: name, "n": number}, message_id=name, content_type=name[:100]
    )
    channel.exchange_declare(f"e{name}", "topic", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 2}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare("dead", durable=True)
    channel.queue_bind(name, f"e{name}", name)
    for body in (name, json.dumps({name: name}), "last"):
        channel.basic_publish(f"e{name}", name, body.encode(), properties)
    pattern = "^" + name.encode().hex()
    ask(broker, "PUT", f"policies/%2F/{quoted(name)}", {"pattern": pattern, "definition": {"max-length": 5}})
    ask(broker, "PUT", f"vhosts/{quoted(f'v{name}')}", {"description": name})
    ask(broker, "PUT", f"users/{quoted(f'u{name}')}", {"password": "x", "tags": [name.replace(",", "")]})


def routes(queue: str, exchange: str, connection: str) -> dict[str, str]:
    """Return the addresses of all pages, with these objects."""
    one, other, third = (quoted(each) for each in (queue, exchange, connection))
    return {
        **{
            each: each
            for each in (
                "overview", "queues", "dead-letters", "held", "messages", "tail", "exchanges", "connections", "channels", "consumers",
                "policies", "operator-policies", "shovels", "users", "vhosts", "definitions", "logs", "reports", "about",
            )
        },
        "queue": f"queues/%2F/{one}",
        "queue-messages": f"queues/%2F/{one}?tab=messages",
        "queue-bindings": f"queues/%2F/{one}?tab=bindings",
        "tail-of-exchange": f"tail/%2F/{other}",
        "exchange": f"exchanges/%2F/{other}",
        "connection": f"connections/{third}",
    }  # fmt: skip


NAMES = tuple(routes("", "", ""))
