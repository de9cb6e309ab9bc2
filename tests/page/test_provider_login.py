"""Logging in to the page by an identity provider, in a browser."""

from collections.abc import Iterator
from typing import Any

import pytest
from doubles.identity_provider import Provider, providing, settings
from services.browsing import Page, opened

import leveret
from leveret.broker.http import server as http_server

FOREIGN = 5
"""Addresses outside the broker that a login may ask for: the provider's own pages, an icon."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providing() as started:
        yield started


@pytest.fixture
def page(browser, provider) -> Iterator[Page]:
    """A page of a broker that knows the provider, not logged in."""
    with leveret.Broker(management=True, config=settings(provider)) as broker:
        for each in opened(browser, broker, logged_in=False):
            each.expected = ("401", "favicon", "404")
            yield each
            assert all(address.startswith(provider.url) for address in each.foreign)
            assert len(each.foreign) <= FOREIGN
            each.foreign.clear()


def log_in(page: Page, route: str = "queues") -> None:
    page.tab.goto(f"{page.base}/#/{route}")
    page.tab.click("#provider")
    page.tab.click("#sign-in")


def stored(page: Page) -> str:
    """Return all that scripts of the page can read of a login."""
    found: str = page.tab.evaluate(
        "document.cookie + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage}) + location.href"
    )
    return found


def test_a_login_opens_the_page_that_was_asked_for(page, provider):
    """The browser comes back to it as the user of the token; no secret, code or token is left for a script."""
    log_in(page)
    page.tab.wait_for_selector("h1:has-text('Queues')")

    assert "ann" == page.tab.inner_text("#user")
    assert f"{page.base}/#/queues" == page.tab.url
    (asked,), (form,) = provider.asked, provider.exchanged
    assert ("code", "page", "openid rabbitmq.*", "S256", f"{page.base}/") == tuple(
        asked[name]
        for name in ("response_type", "client_id", "scope", "code_challenge_method", "redirect_uri")
    )
    left = stored(page)
    assert [] == [name for name in ("code", "code_verifier") if form[name] in left]
    assert asked["state"] not in left
    assert "eyJ" not in left


def test_names_and_passwords_are_not_asked_for(page):
    """As by default in RabbitMQ, the provider is the only way to log in to the page."""
    page.tab.goto(page.base)
    page.tab.wait_for_selector("#provider:focus")

    assert 0 == page.tab.locator("#login input").count()
    assert (
        401
        == page.tab.request.post(
            f"{page.base}/api/login", form={"username": "guest", "password": "guest"}
        ).status
    )


def test_a_login_that_was_begun_elsewhere_is_refused(page, provider):
    """A code that somebody else's login has led to, with any state, begins no session, and is not exchanged."""
    page.tab.goto(f"{page.base}/?code=stolen&state=made-up#/queues")
    page.tab.wait_for_selector("#login .error:has-text('not begun in this window')")

    assert [] == provider.exchanged
    assert f"{page.base}/" == page.tab.url
    assert [] == page.tab.context.cookies()


def test_a_refusal_of_the_provider_is_said_as_text(page, provider):
    """Its words are no markup."""
    provider.error = "access_denied"
    log_in(page)
    page.tab.wait_for_selector("#login .error:has-text('<b>access_denied</b>')")

    assert [] == provider.exchanged


def test_a_user_without_rights_is_told(page, provider):
    """Somebody whose token has no tag may not use the page."""
    provider.scopes = "rabbitmq.read:*/*"
    log_in(page)
    page.tab.wait_for_selector("#login .error:has-text('Not management user')")


def test_a_token_that_has_expired_asks_for_a_login(page, provider, monkeypatch):
    """The session ends with the token, and the provider lets the user in again."""
    monkeypatch.setattr(http_server, "RENEWAL_SECONDS", 0.2)
    provider.seconds = 8
    log_in(page)
    page.tab.wait_for_selector("h1:has-text('Queues')")
    page.tab.wait_for_selector("#login:not([hidden]) .error:has-text('log in again')")
    provider.seconds = 3600
    page.tab.click("#provider")
    page.tab.click("#sign-in")
    page.tab.wait_for_selector("h1:has-text('Queues')")

    assert 2 == len(provider.exchanged)


def test_passwords_can_be_allowed_beside_it(browser, provider):
    """With `management.oauth_disable_basic_auth = false` the form is there, too."""
    more: dict[str, Any] = {"management__oauth_disable_basic_auth": "false"}
    with leveret.Broker(management=True, config=settings(provider, **more)) as broker:
        for page in opened(browser, broker, logged_in=False):
            page.expected = ("401",)
            page.tab.goto(page.base)
            page.tab.wait_for_selector("#provider:not([hidden])")
            page.login()
            page.tab.wait_for_selector("main h1")
            assert "guest" == page.tab.inner_text("#user")
