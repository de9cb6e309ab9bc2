"""Logging in and out, and what a browser keeps and gives away."""

import http.server
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from processes.running import free_port, serving
from services.browsing import Page, base_of, context_of, cookie_of, opened, publish

from leveret.broker.http import server as http_server

LIVE_SECONDS = 6.0
"""Time until a page is live again after a start; two on a machine with nothing else to do."""


def test_a_wrong_password_is_said(stranger):
    """And a right one opens the page; the password is nowhere in it then."""
    stranger.expected = ("401",)
    stranger.login(password="wrong")
    stranger.tab.wait_for_selector("#login .error:has-text('The name or the password is wrong.')")
    stranger.login()
    stranger.tab.wait_for_selector("main h1")

    assert "Overview" == stranger.tab.inner_text("main h1")
    assert "" == stranger.tab.evaluate("document.cookie")
    assert "" == stranger.tab.input_value("[name=password]")
    assert "guest" not in stranger.tab.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")


def test_a_logout_ends_the_session(own_page):
    """In other windows, too; the address is kept for the next login."""
    other = own_page.tab.context.new_page()
    other.goto(f"{own_page.base}/#/queues")
    other.wait_for_selector("main h1")
    own_page.expected = ("401",)
    own_page.open("exchanges")
    own_page.tab.click("text=Log out")
    own_page.tab.wait_for_selector("#login:not([hidden])")
    other.reload()
    other.wait_for_selector("#login:not([hidden])")

    assert "" == own_page.tab.inner_text("main")


def test_a_changed_password_asks_for_a_login(own_page, monkeypatch):
    """Of the page that is open, at the next look of the broker at the rights of those who watch."""
    monkeypatch.setattr(http_server, "RENEWAL_SECONDS", 0.2)
    own_page.expected = ("401",)
    own_page.open("queues")
    own_page.api("PUT", "users/guest", {"password": "new", "tags": "administrator"})

    own_page.tab.wait_for_selector("#login:not([hidden])")
    assert "log in again" in own_page.tab.inner_text("#login")


def test_a_broker_that_is_gone_comes_back(own_page):
    """The page says that it is lost, and goes on after the restart, with a login as sessions are gone."""
    own_page.expected = ("ERR_", "401", "Failed to load")
    publish(own_page.broker, "orders", "a")
    own_page.open("queues")
    own_page.tab.wait_for_selector("text=Live")
    restarted = threading.Event()

    def restart() -> None:
        own_page.broker.restart()
        restarted.set()

    threading.Thread(target=restart, daemon=True).start()
    own_page.until("/No connection|log in again/.test(document.body.innerText)")
    assert restarted.wait(30)
    own_page.tab.wait_for_selector("#login:not([hidden])")
    own_page.tab.fill("[name=username]", "guest")
    own_page.tab.fill("[name=password]", "guest")
    own_page.tab.click("#login button")

    own_page.tab.wait_for_selector("h1:has-text('Queues')")
    own_page.tab.wait_for_selector("#state:has-text('Live')")


def test_a_page_on_a_wall_survives_a_restart(browser, tmp_path):
    """It is live again within seconds of the start, without a login: the sessions are in the data directory."""
    port = free_port()
    words = ("--set", "management.enabled=true", "--set", f"management.tcp.port={port}")
    broker = SimpleNamespace(management_url=f"http://127.0.0.1:{port}/", url="")
    with serving(tmp_path, *words) as running:
        context = context_of(browser, broker)
        page = Page(context.new_page(), broker)
        page.open("queues")
        page.tab.wait_for_selector("#state:has-text('Live')")
        running.stopped_by(signal.SIGTERM)
    page.tab.wait_for_selector("#state:has-text('No connection')")
    page.tab.wait_for_timeout(5000)  # until a browser that is left alone would wait for longer
    with serving(tmp_path, *words) as running:
        began = time.monotonic()
        page.tab.wait_for_selector("#state:has-text('Live')")
        lasted = time.monotonic() - began
        assert page.tab.locator("h1:has-text('Queues')").is_visible()
        context.close()

    assert lasted < LIVE_SECONDS


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_is_chosen(page, theme):
    """And remembered, before anything is painted."""
    page.open("overview")
    while theme != page.tab.evaluate("document.documentElement.dataset.theme ?? ''"):
        page.tab.click("#theme")
    page.tab.reload()
    page.tab.wait_for_selector("main h1")

    assert theme == page.tab.evaluate("getComputedStyle(document.documentElement).colorScheme")


def test_the_document_is_painted_before_the_program_runs(browser, shared_broker):
    """Somebody who waits for a slow line sees the name of the program meanwhile."""
    for page in opened(browser, shared_broker, logged_in=False):
        page.expected = ("ERR_", "Failed to load")
        page.tab.route("**/*.js", lambda route: route.abort())
        page.tab.goto(page.base)
        page.tab.wait_for_selector("#opening:has-text('Leveret')")


def test_all_pages_are_there_when_the_broker_is_not(page):
    """The program loads them when it has nothing else to do: none is missing after an upgrade, or a lost connection."""
    page.expected = ("ERR_", "Failed to load")
    page.open("overview")
    page.until("performance.getEntriesByType('resource').some((each) => each.name.endsWith('/vhosts.js'))")
    page.tab.route("**/*", lambda route: route.abort())
    page.tab.evaluate("location.hash = '#/policies'")
    page.tab.wait_for_selector("h1:has-text('Policies')")


def test_other_pages_of_the_host_cannot_use_the_session(browser, shared_broker):
    """A page of another port, which is the same site, is refused what it asks for with the cookie."""
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    served.RequestHandlerClass.do_GET = lambda self: (self.send_response(200), self.end_headers())
    served.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=served.serve_forever, daemon=True).start()
    context = browser.new_context()
    try:
        context.add_cookies([cookie_of(shared_broker)])
        tab = context.new_page()
        tab.goto(f"http://127.0.0.1:{served.server_port}/")
        statuses: list[int] = []
        tab.on("response", lambda response: statuses.append(response.status))
        tab.evaluate(
            """(url) => fetch(url, {credentials: 'include', mode: 'no-cors', method: 'POST'}).catch(() => null)""",
            f"{base_of(shared_broker)}/api/logout",
        )

        assert [401] == statuses
    finally:
        context.close()
        served.shutdown()
        served.server_close()
