"""The questions of `leveret top` to the management API (driver: a thread, so that no wait stops the screen)."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import ApiClient
from leveret.broker.cli.ctl.errors import ApiError, CtlError
from leveret.broker.cli.top.model import Answer, Question
from leveret.broker.cli.top.summary import Broker

SECONDS: Final = 10.0  # time for each answer
_NODE: Final = (
    "name,uptime,mem_used,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm,fd_used,fd_total"
)
_BAD_REQUEST: Final = 400


class Source:
    """Asks the API; with a vhost only its lists are shown, otherwise those of all that the user may see."""

    def __init__(self, api: ApiClient, vhost: str | None = None) -> None:
        self._api = api
        self._vhost = vhost
        self._may_see_node = True

    def ask(self, question: Question) -> Answer:
        """Return the answer to a question.

        Raises ApiError if the broker refuses it, as for a vhost that does not exist; CtlError if there is no broker, or
        it does not let us in.
        """
        try:
            overview = self._api.get("overview")
            return Answer(question, Broker(overview, self._node(overview.get("node"))), self._page(question))
        except CtlError:
            self._api.close()
            raise

    def _node(self, name: str | None) -> dict[str, Any]:
        if not self._may_see_node:
            return {}
        try:
            nodes: list[dict[str, Any]] = self._api.get("nodes", columns=_NODE)
        except CtlError as error:
            if error.code != exit_codes.NO_PERMISSION:
                raise
            self._may_see_node = False
            return {}
        return next((each for each in nodes if each.get("name") == name), {})

    def _page(self, question: Question) -> dict[str, Any]:
        """Return the page of the list, or the first if the list has become shorter than that."""
        resource = question.view.resource
        path = [resource]
        if self._vhost is not None:
            path = [resource, self._vhost] if resource == "queues" else ["vhosts", self._vhost, resource]
        try:
            page: dict[str, Any] = self._api.get(*path, **question.query)
        except ApiError as error:
            if error.status != _BAD_REQUEST or question.query["page"] == "1":
                raise
            page = self._api.get(*path, **{**question.query, "page": "1"})
        return page


class Poller:
    """Asks in a thread of its own, one question after the other; a new one replaces one that waits.

    `deliver` gets the answer, or what was raised instead; it is called in the thread.
    """

    def __init__(self, source: Source, deliver: Callable[[Answer | Exception], object]) -> None:
        self._source = source
        self._deliver = deliver
        self._waiting: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        # A daemon: an answer that does not come must not keep the terminal from its owner.
        self._thread = threading.Thread(target=self._run, name="leveret top", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> None:
        """Ask a question as soon as the one before it is answered."""
        self._waiting.put(question)

    def end(self) -> None:
        """End the thread after the answer that it waits for; does not wait for it."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (question := self._last()) is not None:
            try:
                answer: Answer | Exception = self._source.ask(question)
            except Exception as error:  # noqa: BLE001 - it must not end here unseen
                answer = error
            self._deliver(answer)

    def _last(self) -> Question | None:
        """Wait for a question, and return the last that waits; None at the end."""
        question = self._waiting.get()
        while question is not None and not self._waiting.empty():
            question = self._waiting.get()
        return question
