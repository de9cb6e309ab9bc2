"""Imports of whole definitions, and backups, which concern the data of all processes (driver)."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from leveret.broker.administration.access import BadRequestError
from leveret.broker.administration.definitions import heading
from leveret.broker.administration.definitions_document import SECTIONS, Document, Reading, encoded
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.config.placement import FOLDER
from leveret.broker.http.call import Stored
from leveret.broker.http.errors import ApiError
from leveret.broker.management.definitions import written
from leveret.broker.persistence.backup import RunningBackup
from leveret.broker.placement.front import FrontServer
from leveret.broker.placement.joining import JSON, LIMITS, Answers, decoded
from leveret.broker.placement.questions import NoAnswerError, Questions, silence
from leveret.storage.errors import StorageError
from leveret.storage.files import DIRECTORY
from leveret.storage.store.backup import Copied

POLL_SECONDS: Final = 0.2  # time between two questions about the backup of a process
_FRONT: Final = 0  # the front among the processes
_OF_FRONT: Final = frozenset({"vhosts", "users", "permissions", "topic_permissions", "global_parameters"})
_PLACE: Final = re.compile(r"(\w+)\[(\d+)\]")  # what the text about an entry begins with


class DividedImport:
    """An import that is divided: the front has what is in no virtual host, processes have the others.

    All check theirs before anything is changed. `ask` sends a request with a content for each process, and returns a
    need of its answers.
    """

    def __init__(
        self,
        front: FrontServer,
        ask: Callable[[str, Mapping[int, bytes]], Generator[Any, Any, Answers]],
        reading: Reading,
    ) -> None:
        self._front, self._ask = front, ask
        self._documents: defaultdict[int, Document] = defaultdict(Document)
        self._positions: defaultdict[int, dict[str, list[int]]] = defaultdict(
            lambda: {section: [] for section in SECTIONS}
        )
        self._new: list[str] = []  # virtual hosts that have got a process, and are not made yet
        self.own = Reading(
            self._documents[_FRONT], reading.problems, reading.unknown, self._positions[_FRONT]
        )
        self._reading = reading

    def divide(self) -> Generator[None, None, None]:
        """Divide the definitions, in steps."""
        placement, document = self._front.placement, self._reading.document
        for at, vhost in zip(self._reading.positions_of("vhosts"), document.vhosts, strict=False):
            if placement.of(vhost.name) is None:
                self._new.append(vhost.name)
                self._add(placement.place(vhost.name), "vhosts", at, vhost)
            yield
        for section in SECTIONS:
            for at, entry in zip(
                self._reading.positions_of(section), getattr(document, section), strict=False
            ):
                is_own = section in _OF_FRONT or getattr(entry, "component", "") == LIMITS
                number = _FRONT if is_own else placement.of(entry.vhost) or _FRONT
                self._add(number, section, at, entry)
                yield

    def _add(self, number: int, section: str, at: int, entry: Any) -> None:
        getattr(self._documents[number], section).append(entry)
        self._positions[number][section].append(at)

    def checked(self, outcome: Outcome) -> Generator[Any, Any, None]:
        """Have all processes check theirs, and add to the outcome; raises ApiError."""
        try:
            contents = yield from self._contents()
            answers = yield from self._ask("&dry_run=true", contents)
            if answers.missing:
                raise NoAnswerError(answers.missing[0])
            for each in answers.found:
                if each.status != HTTPStatus.OK:
                    raise ApiError(each.status, each.value["error"], each.value["reason"])
                outcome.join(self._of_file(each.value, self._positions[each.process]))
        finally:
            self._forget_new()

    def _forget_new(self) -> None:
        for name in self._new:
            if name not in self._front.vhosts:
                self._front.placement.remove(name)

    def imported(self) -> Generator[Any, Any, None]:
        """Have the processes import theirs, once the front has what all need; raises ApiError."""
        yield Stored()
        for document in self._documents.values():
            document.vhosts.clear()
        contents = yield from self._contents()
        answers = yield from self._ask("", contents)
        for number in answers.missing:
            raise NoAnswerError(number)
        for each in answers.found:
            if each.status != HTTPStatus.OK:
                raise BadRequestError(each.value["reason"])

    def _contents(self) -> Generator[None, None, dict[int, bytes]]:
        """Return the definitions of each process that has some, in steps."""
        found: dict[int, bytes] = {}
        for number, document in self._documents.items():
            if number != _FRONT:
                sections = [(section, getattr(document, section)) for section in SECTIONS]
                pieces: list[bytes] = []
                for piece in written(heading(self._front), sections):
                    pieces.append(piece or b"")
                    yield
                found[number] = b"".join(pieces)
        return found

    def _of_file(self, shown: dict[str, Any], positions: Mapping[str, list[int]]) -> dict[str, Any]:
        """Return the outcome of a process with the positions of the file, and without virtual hosts."""

        def placed(text: str) -> str:
            return _PLACE.sub(
                lambda found: f"{found[1]}[{positions[found[1]][int(found[2])]}]", text, count=1
            )

        for kind in ("counts", "changes"):
            shown[kind] = [each for each in shown[kind] if each["kind"] != "vhosts"]
        for change in shown["changes"]:
            change["entry"] = placed(change["entry"])
        for kind in ("problems", "skipped"):
            shown[kind] = [placed(text) for text in shown[kind] if not text.startswith("vhosts[")]
        return shown


class DividedBackup:
    """Adds the data of the processes to a backup of the front, one after the other."""

    def __init__(self, front: FrontServer, questions: Questions) -> None:
        self._front, self._questions = front, questions

    async def __call__(self, running: RunningBackup, target: Path) -> None:
        """Copy them into the directory of the backup; raises StorageError."""
        (target / FOLDER).mkdir(DIRECTORY)
        for number in self._front.processes.all:
            before, total = running.elsewhere, running.elsewhere_total
            wanted = encoded({"path": str(target / FOLDER / str(number)), "rate": running.rate})
            found = await self._asked(number, "POST", wanted)
            while found["state"] == "running":
                await asyncio.sleep(POLL_SECONDS)
                found = await self._asked(number, "DELETE" if running.is_cancelled else "GET")
                running.elsewhere = before._replace(octets=before.octets + found["copied"])
                running.elsewhere_total = total + found["total"]
            if found["state"] != "done":
                raise StorageError(found["error"])
            running.elsewhere = Copied(before.octets + found["copied"], before.files + found["files"])

    async def _asked(self, number: int, method: str, content: bytes = b"") -> dict[str, Any]:
        try:
            answer = await self._questions.ask(
                number, method, "/api/leveret/backup", {"content-type": JSON}, content
            )
            async with answer:
                value: dict[str, Any] = decoded(await self._questions.answered(number, answer.read()))
        except NoAnswerError as error:
            raise StorageError(silence(error.number)) from None
        if answer.status != HTTPStatus.OK:
            raise StorageError(value["reason"])
        return value
