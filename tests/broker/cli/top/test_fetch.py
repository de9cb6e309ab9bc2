"""The questions to the management API."""

import queue as queues
import threading

import pytest
from samples.top_answers import page, queue

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import ApiError
from leveret.broker.cli.ctl.output import CtlError
from leveret.broker.cli.top.app import Poller, Source
from leveret.broker.cli.top.model import Model
from leveret.broker.cli.top.views import CONNECTIONS

SECONDS = 30


class FakeApi:
    """An API with answers by path; an answer that is an error is raised."""

    def __init__(self, **answers):
        self.answers = {
            "overview": {"node": "n"},
            "nodes": [{"name": "m"}, {"name": "n", "uptime": 1}],
            "queues": page(queue("q")),
            **answers,
        }
        self.asked = []
        self.closed = 0

    def get(self, *path, **query):
        self.asked.append((path, query))
        answer = self.answers[path[0]]
        if callable(answer):
            answer = answer(query)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed += 1


def test_an_answer_has_the_overview_the_node_and_the_page():
    """Three requests, of which the last is that of the list."""
    api = FakeApi()
    answer = Source(api).ask(Model().question())

    assert ({"node": "n"}, {"name": "n", "uptime": 1}) == answer.broker
    assert "q" == answer.page["items"][0]["name"]
    assert (("queues",), dict(Model().question().query)) == api.asked[-1]


def test_the_lists_of_one_vhost():
    """Queues and connections have their own paths for that."""
    api = FakeApi(vhosts=page())
    source, model = Source(api, "a/b"), Model()
    source.ask(model.question())
    model.show(CONNECTIONS)
    source.ask(model.question())

    assert [("queues", "a/b"), ("vhosts", "a/b", "connections")] == [
        path for path, _query in api.asked if len(path) > 1
    ]


def test_a_user_who_may_not_see_the_node_is_asked_once():
    """The lists are shown all the same."""
    api = FakeApi(nodes=CtlError("refused", exit_codes.NO_PERMISSION))
    source = Source(api)

    assert [{}, {}] == [source.ask(Model().question()).broker.node for _ in range(2)]
    assert 1 == sum(path == ("nodes",) for path, _query in api.asked)


@pytest.mark.parametrize("name", ["overview", "nodes", "queues"])
def test_without_a_broker_the_connection_is_opened_anew(name):
    """Whichever request failed."""
    api = FakeApi(**{name: CtlError("gone", exit_codes.UNAVAILABLE)})

    with pytest.raises(CtlError, match="gone"):
        Source(api).ask(Model().question())
    assert 1 == api.closed


def test_a_page_behind_the_end_is_the_first_page():
    """The list has become shorter meanwhile; another error is told."""

    def shorter(query):
        return page(queue("q")) if query["page"] == "1" else ApiError(400, "Page out of range")

    model = Model()
    behind = {**model.question().query, "page": "7"}
    question = type(model.question())(model.view, behind)

    assert 1 == Source(FakeApi(queues=shorter)).ask(question).page["page"]
    with pytest.raises(ApiError):
        Source(FakeApi(queues=ApiError(404, "Object Not Found"))).ask(question)


def test_only_the_last_of_waiting_questions_is_asked():
    """Somebody who types quickly does not make a queue of requests."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(_query):
        entered.set()
        assert go_on.wait(SECONDS)
        return {}

    api = FakeApi(overview=slow)
    answers = queues.SimpleQueue()
    poller, model = Poller(Source(api), answers.put), Model()
    poller.ask(model.question())
    assert entered.wait(SECONDS)
    for text in ("o", "or", "ord"):
        model.narrow(text)
        poller.ask(model.question())
    go_on.set()

    assert ["", "ord"] == [answers.get(timeout=SECONDS).question.query.get("name", "") for _ in range(2)]
    poller.end()


def test_errors_are_delivered():
    """And the thread goes on."""
    answers = queues.SimpleQueue()
    unexpected = Poller(Source(FakeApi(overview=KeyError("gone"))), answers.put)
    unexpected.ask(Model().question())
    assert isinstance(answers.get(timeout=SECONDS), KeyError)
    unexpected.end()
    poller = Poller(Source(FakeApi(overview=CtlError("gone"))), answers.put)
    for _ in range(2):
        poller.ask(Model().question())
        assert "gone" == str(answers.get(timeout=SECONDS))
    poller.end()
