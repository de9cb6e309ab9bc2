"""The base of the views of a broker: how operations of the service layer are carried out in its loop (driver).

All of them (`broker.administration`) are carried out as the operator on the host: permissions of users do not matter.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.broker.administration import Administration, AdministrationError
from leveret.broker.administration.messages import Steps
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.embedded_server import Answer
from leveret.broker.embedded.errors import ClosedBrokerError, DataDirectoryError, RefusedError
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from leveret.broker.administration.transfers import Transfers

T = TypeVar("T")


class View:
    """A view of something in one virtual host."""

    def __init__(self, core: Core, vhost: str) -> None:
        self._core = core
        self._vhost = vhost

    async def _do(self, work: Callable[[Administration], T]) -> T:
        """Carry out an operation, and wait until what it has changed is on disk.

        Raises:
            RefusedError: the broker refuses it.
            ClosedBrokerError: the broker does not run.
            DataDirectoryError: the disk cannot be read now.

        """
        server = self._core.server
        try:
            result = work(server.administration)
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        finally:
            server.run_turn()
        await server.stored()
        return result

    def _see(self, work: Callable[[Administration], T]) -> T:
        """Look at something that takes no time; raises as `_do`."""
        server = self._core.server
        server.run_turn()
        try:
            return work(server.administration)
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        except StorageError as error:
            raise DataDirectoryError(str(error)) from None

    async def _look(self, begin: Callable[[Administration], Steps[T]]) -> T:
        """Carry out an operation in steps, between which clients are served; raises as `_do`."""
        steps = self._see(begin)
        answer: Any = None
        slices = self._core.server.turn.slices
        slices.begin()
        while True:
            try:
                read = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = None
            if read is not None:
                answer = await self._read(read)
            elif slices.is_over():
                await asyncio.sleep(0)
            else:
                continue
            slices.begin()

    async def _read(self, work: Callable[[], Any]) -> Any:
        """Run a read in the thread of the reader."""
        server = self._core.server
        if server.disk is None:
            raise ClosedBrokerError("the broker is not running any more")
        read = Answer[Any]()

        def finished(found: Any, error: BaseException | None) -> None:
            if error is None:
                read.give(found)
            else:
                read.fail(DataDirectoryError(f"cannot read the data now: {error}"))

        server.disk.run_read(work, finished)
        return await server.result_of(read.future)

    async def _transfer(self, start: Callable[["Transfers"], int]) -> dict[str, Any]:
        """Transfer messages, and wait until that is on disk; returns the result (`administration.transfers.shown`)."""
        server = self._core.server
        number = self._see(lambda each: start(each.transfers))
        ended = Answer[None]()
        transfers = server.administration.transfers
        transfers.when_ended(number, lambda: ended.give(None))
        try:
            await server.result_of(ended.future)
        except asyncio.CancelledError:
            transfers.cancel(None, number)
            raise
        await server.stored()
        return transfers.transfer(None, number)
