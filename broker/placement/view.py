"""One view over all processes: the management API of the front (driver).

Each operation is answered by the front itself if it concerns the node (`_OWN`), by the process of the virtual host in
its path, or by all processes, whose answers are joined (`broker.placement.joining`). Requests go to the control sockets
of the processes, with the name of the user, whose rights they check, too. One that does not answer in time is
missing: requests for its virtual hosts fail, the answers to others name it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import web

from leveret.broker.administration.access import sees_all
from leveret.broker.administration.definitions import heading
from leveret.broker.administration.definitions_document import SECTIONS, Reading, encoded
from leveret.broker.auth.users import User
from leveret.broker.http.call import (
    Call,
    Callback,
    Content,
    Done,
    Events,
    Item,
    Listing,
    Need,
    Steps,
    Stream,
)
from leveret.broker.http.dispatch import LINES, OF_NODE, PART_HEADER, Admitted, Response, failed
from leveret.broker.http.feeds import Topic
from leveret.broker.http.login import USER_HEADER
from leveret.broker.http.route import Operation, Route, Router
from leveret.broker.http.running_brokers import NAME
from leveret.broker.http.server import LONG_SECONDS, Asked, ManagementServer
from leveret.broker.management.health import failed as check_failed
from leveret.broker.management.routes import ROUTES
from leveret.broker.placement.dividing import DividedBackup, DividedImport
from leveret.broker.placement.following import Following
from leveret.broker.placement.front import FrontServer
from leveret.broker.placement.joining import (
    JSON,
    MISSING,
    Answers,
    added,
    exported,
    fine,
    listed,
    part_query,
)
from leveret.broker.placement.questions import NoAnswerError, Questions, silence

log = logging.getLogger("leveret.management")

_SURROGATES: Final = "surrogateescape"
_PASSED_ON: Final = (
    "accept", "content-type", "content-length", "if-none-match", "x-vhost", "x-reason",
)  # fmt: skip
"""Headers of a request that a process gets."""
_OF_CONNECTION: Final = frozenset({"connection", "date", "keep-alive", "server", "transfer-encoding"})
"""Headers of an answer of a process that are not passed on."""

# fmt: off
_OWN: Final = OF_NODE | {
    "auth", "config", "deprecated-features", "extensions", "feature-flags", "federation-links", "health", "login",
    "logout", "openapi.json", "rebalance", "version", "whoami",
}
"""First words of paths of what the front answers itself, beside single ones of Leveret."""
_OWN_OF_LEVERET: Final = frozenset({
    "authenticate", "clear-auth-backend-cache", "cluster", "log-level", "logs", "oauth", "reload-tls", "reports",
    "rotate-logs", "settings", "stop",
})
# fmt: on
_OF_VHOST: Final = frozenset({"vhosts/{vhost}/connections", "vhosts/{vhost}/channels"})
_MEMORY: Final = "leveret/memory-watermark"
_LIMITS: Final = frozenset({_MEMORY, "leveret/disk-free-limit"})
_IMPORTS: Final = frozenset({"definitions", "all-configuration", "leveret/definitions"})


class View:
    """The processes, asked by requests to their control sockets."""

    def __init__(self, front: FrontServer) -> None:
        self._front = front
        self._questions = Questions(front, NAME)
        self._followings: dict[tuple[Any, ...], Following] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.router = Router([self._route(route) for route in ROUTES])

    async def close(self) -> None:
        """Close all connections to processes."""
        for task in self._tasks:
            task.cancel()
        for following in self._followings.values():
            following.close()
        await self._questions.close()

    def process_of(self, admitted: Admitted) -> int | None:
        """Return the process that answers a request alone; None if the front does."""
        return self._front.placement.of(admitted.names["vhost"]) if admitted.operation.is_forwarded else None

    # -- requests to processes ----------------------------------------------------------------------------------------

    async def forward(self, number: int, request: web.BaseRequest, admitted: Admitted) -> Response:
        """Have a process answer a request, whatever the length of its answer. Raises NoAnswerError."""
        received = admitted.request
        headers = {name: received.headers[name] for name in _PASSED_ON if name in received.headers}
        target = received.path + (f"?{query}" if (query := request.rel_url.raw_query_string) else "")
        content = request.content if request.can_read_body else None
        answer = await self._questions.ask(
            number, received.method, target, headers | _of_user(admitted.actor), content
        )
        shown = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_CONNECTION}
        body = _Body(answer)
        stream = Stream(body.pieces(), body.when_there, answer.close, "", b"", b"")
        return Response(answer.status, shown, iter(()), stream=stream)

    def _when_done(self, work: Coroutine[Any, Any, Any], callback: Callable[[Any], object]) -> None:
        """Call back with the task of some work once it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(callback)

    def _everywhere(
        self, call: Call, method: str, path: str, query: Mapping[str, str], *, is_list: bool = False
    ) -> Generator[Need, Any, Answers]:
        """Ask all processes for what a call asks for, in steps; raises ApiError."""
        headers = {
            name: call.headers[name]
            for name in ("content-type", "x-vhost", "x-reason")
            if name in call.headers
        }
        headers |= _of_user(call.actor) | ({"accept": LINES} if is_list else {})
        words = [call.names[word[1:-1]] if word[0] == "{" else word for word in path.split("/")]
        target = "/api/" + "/".join([quote(word, safe="", errors=_SURROGATES) for word in words])
        if query:
            target += "?" + urlencode(query, errors=_SURROGATES)
        asking = self._questions.ask_all(method, target, headers, call.content, is_list=is_list)
        return (yield from self._asked(asking))

    def _asked(self, asking: Coroutine[Any, Any, Answers]) -> Generator[Need, Any, Answers]:
        done = yield Callback(partial(self._when_done, asking))
        answers: Answers = done.result()
        return answers

    # -- operations ---------------------------------------------------------------------------------------------------

    def _route(self, route: Route) -> Route:
        operations = {
            method: self._operation(route.path, method, each) for method, each in route.operations.items()
        }
        return replace(route, operations=operations)

    def _operation(self, path: str, method: str, operation: Operation) -> Operation:
        """Return how the front answers an operation."""
        first, _, rest = path.partition("/")
        word = rest.partition("/")[0]
        is_own = (first in _OWN and path != "users/{user}/queues") or (
            first == "leveret" and word in _OWN_OF_LEVERET
        )
        joined = _JOINED.get(path) if method == "GET" or path in _LIMITS else None
        handler: Callable[[Call], Any]
        if joined is not None:
            handler = partial(joined, self, path, operation.handler)
        elif method == "POST" and path in _IMPORTS:
            return replace(operation, handler=partial(self.imported, operation.handler))
        elif first == "reset":
            handler = partial(self.forgotten, path, operation.handler)
        elif path == "leveret/backup":
            return replace(operation, handler=partial(self.backed_up, operation.handler))
        elif path in _OF_VHOST or ("{vhost}" in path and not is_own):
            return replace(operation, is_forwarded=True)
        elif is_own:
            return operation
        else:
            handler = partial(
                self._joined, path, method, is_list=method == "GET" and operation.kind == "array"
            )
        # no answer is kept: the front does not see when one is too old
        return replace(operation, handler=handler, kind="object", state=None, is_stored=False)

    def _joined(self, path: str, method: str, call: Call, *, is_list: bool) -> Steps:
        """Answer with what all processes say, or the one that knows the object."""
        patterns = self._front.directory.patterns
        query = part_query(call.query, patterns) if is_list else call.query
        answers = fine((yield from self._everywhere(call, method, path, query, is_list=is_list)))
        if not isinstance(answers, Answers):
            return answers
        if not answers.found:
            raise NoAnswerError(answers.missing[0])
        if is_list:
            return (yield from listed(answers, call.query, patterns))
        first = answers.found[0]
        if len(answers.found) == 1 or not first.content:
            pieces = (first.content,) if first.content else ()
            return Content(pieces, first.content_type, answers.headers, first.status)
        return answers.item(added([each.value for each in answers.found]))

    def with_own(self, path: str, own: Any, call: Call) -> Steps:
        """Add what the processes say to what the front says: figures of the node."""
        made = own(call)
        answer = (yield from made) if isinstance(made, Generator) else made
        query = {name: value for name, value in call.query.items() if name != "columns"}
        answers = fine((yield from self._everywhere(call, "GET", path, query)))
        if not isinstance(answers, Answers):
            return answers
        values = [each.value for each in answers.found]
        if isinstance(answer, Item):
            if "object_totals" in answer.value:  # the front has exchanges that are not used
                answer.value["object_totals"] = dict.fromkeys(answer.value["object_totals"], 0)
            return answers.item(added([answer.value, *values]))
        rows = [added(rows) for rows in zip(answer.rows, *values, strict=True)]
        return Listing(rows, sort=answer.sort, headers=answers.headers)

    def vhosts(self, path: str, own: Any, call: Call) -> Steps:
        """Show virtual hosts: the front has their metadata, the processes their figures."""
        answer = own(call)
        ranges = {name: value for name, value in call.query.items() if name.endswith(("_age", "_incr"))}
        answers = fine((yield from self._everywhere(call, "GET", path, ranges)))
        if not isinstance(answers, Answers):
            return answers
        found = [each.value for each in answers.found]
        if isinstance(answer, Item):
            return answers.item({**(found[0] if found else {}), **answer.value})
        figures = {row["name"]: row for rows in found for row in rows}
        own_rows = [{key: read(vhost) for key, read in answer.fields.items()} for vhost in answer.rows]
        rows = [{**figures.get(row["name"], {}), **row} for row in own_rows]
        return Listing(rows, sort=answer.sort, headers=answers.headers)

    def limited(self, path: str, own: Any, call: Call) -> Steps:
        """Set a limit of the node: each process gets its share of the memory."""
        made: Item = own(call)
        share = len(self._front.processes.all) if path == _MEMORY else 1
        call.content = encoded({"absolute": made.value["limit"] // share})
        answers = fine((yield from self._everywhere(call, "PUT", path, {})))
        return answers.item(made.value) if isinstance(answers, Answers) else answers

    def checked(self, path: str, own: Any, call: Call) -> Steps:
        """Pass a check if the front and all processes pass it."""
        answer: Item = own(call)
        if answer.status != HTTPStatus.OK:
            return answer
        answers = yield from self._everywhere(call, "GET", path, call.query)
        for each in answers.found:
            if each.status != HTTPStatus.OK:
                return Item(each.value, status=each.status)
        if answers.missing:
            return check_failed(silence(answers.missing[0]), **{MISSING: answers.missing})
        return answer

    def definitions(self, _path: str, _own: Any, call: Call) -> Steps:
        """Export what the front has, and what the processes have."""
        document = yield from call.administration.definitions.exporting(call.actor)
        answers = fine((yield from self._everywhere(call, "GET", "definitions", {})))
        if not isinstance(answers, Answers):
            return answers
        sections = [(name, getattr(document, name)) for name in SECTIONS]
        return exported(heading(call.broker), sections, answers)

    def imported(self, own: Any, call: Call) -> Any:
        """Import definitions, of which each process gets those of its virtual hosts."""

        def divide(actor: User | None, reading: Reading, on_unsupported: str) -> Any:
            def asked(query: str, contents: Mapping[int, bytes]) -> Any:
                target = f"/api/leveret/definitions?on_unsupported={on_unsupported}{query}"
                headers = {"content-type": JSON, PART_HEADER: ""} | _of_user(actor)
                return (yield from self._asked(self._questions.ask_all("POST", target, headers, contents)))

            part = DividedImport(self._front, asked, reading)
            yield from part.divide()
            return part

        call.administration.definitions.divide = divide
        return own(call)

    def backed_up(self, own: Any, call: Call) -> Any:
        """Start, cancel or show a backup, which has the data of all processes."""
        if call.broker.backups is not None:
            call.broker.backups.more = DividedBackup(self._front, self._questions)
        return own(call)

    def forgotten(self, path: str, own: Any, call: Call) -> Steps:
        """Forget samples everywhere."""
        yield from own(call)
        answers = fine((yield from self._everywhere(call, "DELETE", path, {})))
        return Done(headers=answers.headers) if isinstance(answers, Answers) else answers

    def events(self, _path: str, own: Any, call: Call) -> Steps:
        """Send the events of all processes, as those of one broker."""
        answer: Events = own(call)
        vhost = call.query.get("vhost")
        actor = None if vhost is None and sees_all(call.actor) else call.actor
        who = None if actor is None else actor.name
        query = {} if vhost is None else {"vhost": vhost}

        def followed(topics: tuple[Topic, ...]) -> tuple[Topic, ...]:
            found = [self._following((*topic.identity, who), topic.name, query, actor) for topic in topics]
            pairs = zip(topics, found, strict=True)
            return tuple(
                [
                    topic._replace(key=(topic.key, who), read=partial(each.read, topic))
                    for topic, each in pairs
                ]
            )

        for topic in answer.topics:
            following = self._following((*topic.identity, who), topic.name, query, actor)
            yield Callback(partial(self._when_done, following.begin()))
        return Events(followed(answer.topics), lambda: followed(answer.renewed()))

    def _following(
        self, key: tuple[Any, ...], name: str, query: Mapping[str, str], actor: User | None
    ) -> Following:
        if (found := self._followings.get(key)) is None:
            for each, old in list(self._followings.items()):
                if old.is_over:
                    del self._followings[each]
            target = "/api/leveret/events?" + urlencode({"topics": name, **query}, errors=_SURROGATES)
            numbers = self._front.processes.all
            found = Following(self._questions, numbers, target, _of_user(actor))
            self._followings[key] = found
        return found


_JOINED: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("overview", "leveret/resources", "nodes", "nodes/{node}", "nodes/{node}/memory"), View.with_own),
    **dict.fromkeys(("vhosts", "vhosts/{vhost}"), View.vhosts),
    "leveret/events": View.events,
    **dict.fromkeys(_LIMITS, View.limited),
    **dict.fromkeys(("definitions", "all-configuration"), View.definitions),
    **dict.fromkeys((
        "health/checks/alarms", "health/checks/local-alarms", "health/checks/virtual-hosts", "healthchecks/node",
        "healthchecks/node/{node}",
    ), View.checked),
}  # fmt: skip


def _of_user(actor: User | None) -> dict[str, str]:
    return {} if actor is None else {USER_HEADER: quote(actor.name, safe="", errors=_SURROGATES)}


class _Body:
    """The body of an answer as it comes."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self._reading: asyncio.Future[bytes] | None = None

    def pieces(self) -> Iterator[bytes]:
        """Yield what there is; b"" for nothing as yet. Raises ConnectionError."""
        while True:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._answer.content.readany())
            if not self._reading.done():
                yield b""
                continue
            try:
                octets = self._reading.result()
            except aiohttp.ClientError as error:
                raise ConnectionError(str(error)) from None
            self._reading = None
            if not octets:
                return
            yield octets

    def when_there(self, callback: Callable[[], object]) -> None:
        """Call back when there is more, or the end."""
        assert self._reading is not None  # noqa: S101 - `pieces` has looked for some
        self._reading.add_done_callback(lambda _: callback())


class FrontManagement(ManagementServer):
    """The API of a front."""

    def __init__(self, broker: FrontServer, prefix: str = "", host_names: Collection[str] = ()) -> None:
        self._view = View(broker)
        super().__init__(broker, self._view.router, prefix, host_names)

    async def stop(self) -> None:
        """Stop as any server, and close the connections to the processes."""
        await super().stop()
        await self._view.close()

    async def _answer(self, asked: Asked) -> Response:
        number = self._view.process_of(asked.admitted)
        if number is None:
            return await super()._answer(asked)
        if asked.admitted.operation.is_long:
            asked.limit.reschedule(asyncio.get_running_loop().time() + LONG_SECONDS)
        try:
            return await self._view.forward(number, asked.request, asked.admitted)
        except NoAnswerError as error:
            return failed(error)
