"""The screen, driven by the pilot of the library."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from samples.top_answers import NODE, OVERVIEW, page, queue
from textual.widgets import Input, Static

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import ApiError
from leveret.broker.cli.ctl.output import CtlError
from leveret.broker.cli.top.app import Source, Top
from leveret.broker.cli.top.model import Model

SECONDS = 30
LONG = 3600.0
"""No question is asked by the clock in these tests."""


class Broker:
    """An API with 40 queues, which sorts them by name or by ready messages."""

    def __init__(self):
        self.problem = None
        self.queries = []
        self.think = lambda: None

    def get(self, *path, **query):
        """Answer as the API does."""
        self.think()
        if self.problem is not None:
            raise self.problem
        if path == ("overview",):
            return OVERVIEW
        if path == ("nodes",):
            return [NODE]
        self.queries.append((path, query))
        if path != ("queues",):
            return page()
        items = [queue(f"q{at:02}", at) for at in range(40) if query.get("name", "") in f"q{at:02}"]
        items.sort(key=lambda each: each[query["sort"]], reverse=query["sort_reverse"] == "true")
        size, number = int(query["page_size"]), int(query["page"])
        shown = items[(number - 1) * size : number * size]
        return page(*shown, number=number, pages=max(1, -(-len(items) // size)), found=len(items))

    def close(self):
        """There is nothing to close."""


@pytest.fixture
def broker():
    return Broker()


@asynccontextmanager
async def shown(broker, size=(80, 24)):
    app = Top(Source(broker), Model(), LONG)
    async with asyncio.timeout(SECONDS), app.run_test(size=size) as pilot:
        await until(pilot, lambda: "q39" in text(pilot, "table"))
        yield pilot


def text(pilot, name):
    return str(pilot.app.screen_stack[0].query_one(f"#{name}", Static).content)


async def until(pilot, is_true):
    """Let the screen work until something is true."""
    while not is_true():
        await pilot.pause(0.01)


async def test_the_queues_are_shown(broker):
    """Those with the most messages first, and the keys below."""
    async with shown(broker) as pilot:
        assert ["q39", "q38"] == [line.split()[0] for line in text(pilot, "table").splitlines()[1:3]]
        assert "rabbit@here" in text(pilot, "header")
        assert text(pilot, "keys").startswith("q quit  ? help")


async def test_the_frame_is_there_before_the_first_answer(broker):
    """With the titles of the columns and the keys, however long the broker thinks."""
    asked = threading.Event()
    broker.think = asked.wait
    app = Top(Source(broker), Model(), LONG)
    async with asyncio.timeout(SECONDS), app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "READY▼" in text(pilot, "table"))
        assert text(pilot, "keys").startswith("q quit  ? help")
        assert [] == broker.queries
        asked.set()
        await until(pilot, lambda: "q39" in text(pilot, "table"))


async def test_an_error_instead_of_the_first_answer_is_the_result(broker):
    """The command tells it when the terminal is its owner's again."""
    broker.problem = CtlError("unable to connect", exit_codes.UNAVAILABLE)
    app = Top(Source(broker), Model(), LONG)
    async with asyncio.timeout(SECONDS), app.run_test() as pilot:
        await until(pilot, lambda: app.return_value is not None)

    assert broker.problem is app.return_value


async def test_keys_sort_and_turn_pages(broker):
    """Each asks the broker again, which sorts."""
    async with shown(broker) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: "q00" in text(pilot, "table"))
        await pilot.press("pagedown")
        await until(pilot, lambda: "17-32 of 40" in text(pilot, "header"))
        await pilot.press("end")
        await until(pilot, lambda: "33-40 of 40" in text(pilot, "header"))
        await pilot.press("home", "down")
        await until(pilot, lambda: text(pilot, "status").startswith("queue q01"))
        await pilot.press("left", "left")
        await until(pilot, lambda: "name" == broker.queries[-1][1]["sort"])
        assert "NAME▲" in text(pilot, "table")


async def test_a_filter_narrows_while_it_is_typed(broker):
    """Letters go to the filter only after the slash; enter keeps it, escape drops it."""
    async with shown(broker) as pilot:
        await pilot.press("slash", "q", "1")
        await until(pilot, lambda: "filter q1: 1-10 of 10" in text(pilot, "header"))
        assert "enter keep this filter" in text(pilot, "keys")
        await pilot.press("enter", "r")
        await until(pilot, lambda: "false" == broker.queries[-1][1]["sort_reverse"])
        await pilot.press("escape")
        await until(pilot, lambda: text(pilot, "header").endswith("1-16 of 40"))
        assert "" == pilot.app.query_one("#filter", Input).value


async def test_the_lists_are_switched(broker):
    """By number or with tab; nothing of the old list stands under the new titles."""
    async with shown(broker) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "There are no connections" in text(pilot, "table"))
        await pilot.press("tab")
        await until(pilot, lambda: "There are no channels" in text(pilot, "table"))
        await pilot.press("tab")
        await until(pilot, lambda: "q39" in text(pilot, "table"))


async def test_pause_asks_nothing(broker):
    """Until it goes on."""
    async with shown(broker) as pilot:
        await pilot.press("p")
        await until(pilot, lambda: "PAUSED" in text(pilot, "header"))
        asked = len(broker.queries)
        pilot.app._ask_again()
        await pilot.pause(0.1)
        assert asked == len(broker.queries)
        await pilot.press("space")
        await until(pilot, lambda: len(broker.queries) > asked)


async def test_help_tells_keys_and_columns(broker):
    """It closes with the key that opened it, and with escape, which does not drop the filter then."""
    async with shown(broker, (80, 24)) as pilot:
        for key in ("question_mark", "escape"):
            await pilot.press("question_mark")
            await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
            told = str(pilot.app.screen.query_one(Static).content)
            assert "sort by the column" in told
            assert "messages that wait for a consumer" in told
            await pilot.press("x", "1", "slash", "tab")
            pilot.app._draw()
            assert text(pilot, "keys").startswith("q quit")
            await pilot.press(key)
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def test_a_broker_that_restarts(broker):
    """The last figures stay while it is away, and it goes on by itself."""
    async with shown(broker) as pilot:
        broker.problem = CtlError("Error: unable to connect", exit_codes.UNAVAILABLE)
        pilot.app._ask_again()
        await until(pilot, lambda: "not reachable, trying again: unable to connect" in text(pilot, "status"))
        assert "q39" in text(pilot, "table")
        broker.problem = None
        pilot.app._ask_again()
        await until(pilot, lambda: text(pilot, "status").startswith("queue q39"))


async def test_a_refusal_is_not_an_absence(broker):
    """As of a vhost that was deleted; an error of the program itself ends it, with its traceback."""
    async with shown(broker) as pilot:
        broker.problem = ApiError(404, "Object Not Found")
        pilot.app._ask_again()
        await until(
            pilot, lambda: text(pilot, "status").startswith("refused, trying again: Object Not Found")
        )
    with pytest.raises(KeyError):
        await end_by(KeyError("unexpected"))


async def end_by(error):
    """Show the screen until an error ends it."""
    broker = Broker()
    async with shown(broker) as pilot:
        broker.problem = error
        pilot.app._ask_again()
        await until(pilot, lambda: not pilot.app.is_running)


async def test_another_size_asks_for_as_many_items(broker):
    """A page is what the terminal has lines for."""
    async with shown(broker) as pilot:
        await pilot.resize_terminal(140, 40)
        await until(pilot, lambda: "1-32 of 40" in text(pilot, "header"))
        await pilot.resize_terminal(60, 12)
        await until(pilot, lambda: "4" == broker.queries[-1][1]["page_size"])


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_it_is_left(broker, key):
    """With q, and with ctrl-c, also while a filter is typed."""
    async with shown(broker) as pilot:
        if key != "q":
            await pilot.press("slash")
        await pilot.press(key)
        await until(pilot, lambda: not pilot.app.is_running)
    assert 0 == pilot.app.return_code
