"""Each page: with hostile names, for people with aids, in both themes, on a phone, and for a user who may only look.

All are shown one after another by one window, as for somebody who goes from page to page.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from services.browsing import HOSTILE, NAMES, NARROW, WIDE, Page, ask, cookie_of, opened, routes

THEMES = ("light", "dark")
CHECKED = 10
"""Rules that axe finds something to apply to on any page, at least."""


@pytest.fixture(scope="session")
def addresses(world) -> dict[str, str]:
    """The addresses of all pages, with hostile names in them."""
    (connection, *_) = ask(world, "GET", "connections?columns=name")
    return routes(HOSTILE[0], f"e{HOSTILE[0]}", connection["name"])


@pytest.fixture(scope="module")
def window(browser, world) -> Iterator[Page]:
    """A window with the broker that has hostile names."""
    yield from opened(browser, world)


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    """The name of each page; tests of the same page follow each other."""
    return request.param


@pytest.fixture
def anywhere(window, name, addresses) -> Iterator[Page]:
    """Each page, wide and light; at the end of a test nothing unexpected must have been said."""
    window.errors.clear()
    window.tab.set_viewport_size(WIDE)
    window.tab.emulate_media(color_scheme="light", reduced_motion="reduce")
    window.open(addresses[name])
    yield window
    assert [] == window.unexpected()


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that finds what people with aids could not use."""
    package = pytest.importorskip(
        "axe_playwright_python", reason="the package axe-playwright-python is not installed"
    )
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def barriers(page: Page, axe: str) -> list[tuple[str, list[str]]]:
    """Return what axe finds: names, contrasts, roles, order."""
    if not page.tab.evaluate("'axe' in window"):
        page.tab.evaluate(axe)
    violations, checked = page.tab.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((each) => [each.violations, each.passes.length])"
    )
    assert CHECKED < checked
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in violations]


CUT = """
[...document.querySelectorAll('main .scroll:not(:has(.rights))')].filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => [each.querySelector('table')?.ariaLabel, each.scrollWidth - each.clientWidth])"""
"""Expression whose value names the tables that are cut; permissions have a column for each virtual host."""


def test_hostile_names_are_texts(anywhere, name):
    """No script runs, nothing breaks the policy, and what the page says is what the name is."""
    for summary in anywhere.tab.query_selector_all("details.message > summary"):
        summary.click()

    assert None is anywhere.tab.evaluate("window.ran ?? null")
    assert 0 == anywhere.tab.locator("main script, main img, main iframe").count()
    if name in {"queues", "policies", "users"}:
        anywhere.tab.locator("main", has_text=HOSTILE[0]).wait_for()  # the list comes after the heading


@pytest.mark.parametrize("theme", THEMES)
def test_people_with_aids_can_use_it(anywhere, axe, theme):
    """Axe finds nothing, in both themes."""
    anywhere.tab.emulate_media(color_scheme=theme)

    assert [] == barriers(anywhere, axe)


def test_it_fits_a_phone(anywhere):
    """Nothing is wider than the page: rows of lists are cards, other tables scroll by themselves."""
    anywhere.tab.set_viewport_size(NARROW)

    assert 400 >= anywhere.tab.evaluate("document.documentElement.scrollWidth")
    wide = "[...document.querySelectorAll('.cards')].filter((each) => each.scrollWidth > each.parentElement.clientWidth)"
    assert 0 == anywhere.tab.evaluate(f"{wide}.length")
    assert [] == anywhere.tab.evaluate(CUT)


def test_it_fits_a_desk(anywhere):
    """No list is wider than a window of 1440 pixels."""
    anywhere.tab.set_viewport_size(WIDE)

    assert [] == anywhere.tab.evaluate(CUT)


def test_no_button_is_out_of_sight(anywhere):
    """Nobody has to scroll sideways to the buttons of a row."""
    hidden = "[...document.querySelectorAll('main td button:not(.rights)')].filter((each) => each.getBoundingClientRect().right > innerWidth)"

    assert [] == anywhere.tab.evaluate(f"{hidden}.map((each) => each.textContent)")


def test_people_with_aids_can_use_it_on_a_phone(anywhere, axe):
    """Axe finds nothing in the cards, too."""
    anywhere.tab.set_viewport_size(NARROW)

    assert [] == barriers(anywhere, axe)


@pytest.mark.parametrize("theme", THEMES)
def test_people_with_aids_can_log_in(browser, world, axe, theme):
    """Axe finds nothing in the login form."""
    for page in opened(browser, world, logged_in=False, color_scheme=theme):
        page.tab.goto(page.base)
        page.tab.wait_for_selector("#login:not([hidden])")

        assert [] == barriers(page, axe)


@pytest.fixture(scope="module")
def watching(browser, world) -> Iterator[Page]:
    """A window of a monitoring user."""
    ask(world, "PUT", "users/watcher", {"password": "x", "tags": "monitoring"})
    ask(world, "PUT", "permissions/%2F/watcher", {"configure": "", "write": "", "read": ".*"})
    for page in opened(browser, world, logged_in=False):
        page.tab.context.add_cookies([cookie_of(world, "watcher", "x")])
        yield page


@pytest.mark.parametrize(
    "looked_at",
    ["queues", "queue", "queue-messages", "exchanges", "connections", "policies", "vhosts", "tail"],
)
def test_who_may_only_look_sees_nothing_to_press(watching, addresses, looked_at):
    """A monitoring user has no buttons that change anything."""
    watching.open(addresses[looked_at])
    buttons = watching.tab.locator("main button:not(thead button)").all_inner_texts()

    assert {"Look", "More", "JSON", "Text", "Hex"} >= {text for text in buttons if text}
