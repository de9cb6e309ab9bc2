"""`AsyncBroker`: a broker in the event loop of the application (driver)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.vhost import AsyncVHost


class AsyncBroker(AsyncVHost):
    """A broker in the running event loop; `async with`, or `start` and `stop`.

    The methods of `AsyncVHost` apply to the first virtual host of the configuration, by default `/`. It stops
    with the loop: a broker that is to serve clients while the loop is busy with something else needs a thread
    (`Broker`).

    Args:
        data_dir: directory of the durable data, created if needed; None keeps everything in memory.
        config: keys of the configuration file and their values, as text or as bool, number or path.
        port: port on 127.0.0.1; 0 chooses a free one. The key `listeners.tcp.*` configures other addresses.
        record: whether every publish is recorded (`published`).
        management: whether the management API is served on a free port of 127.0.0.1 (`management_url`).

    Raises:
        ConfigurationError: a key or value of `config` is wrong.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        record: bool = False,
        management: bool = False,
    ) -> None:
        core = Core(data_dir, config, port, record=record, management=management)
        super().__init__(core, core.config.vhosts[0])

    @property
    def clock(self) -> Clock:
        """The clock of the broker, which can be stopped and advanced."""
        return self._core.clock

    @property
    def faults(self) -> Faults:
        """Faults on demand."""
        return self._core.faults

    async def start(self) -> Self:
        """Start; clients can connect when this returns.

        After `stop` or `kill` the broker starts again at the same port, with its data directory.

        Raises:
            PortInUseError: the port is taken.
            DataDirectoryError: another broker uses the directory, or it cannot be read.
            ClosedBrokerError: it is running already.
        """
        await self._core.start()
        return self

    async def stop(self) -> None:
        """Disconnect the clients, write durable data to disk and close. No effect if it is not running."""
        await self._core.stop()

    async def kill(self) -> None:
        """End as if the process were killed: clients are disconnected, nothing more is sent or written.

        Confirmed messages are in the data directory; unconfirmed ones may be. `start` starts the broker again.
        """
        await self._core.kill()

    async def restart(self) -> None:
        """Kill the broker if it is running, and start it again with the same URL and the remaining data.

        Raises what `start` raises.
        """
        await self._core.restart()

    @property
    def management_url(self) -> str:
        """The URL of the management API with a login, for `management=True`. Raises ClosedBrokerError."""
        return self._core.management_url

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url if self._core.is_running else 'closed'}>"

    def vhost_view(self, name: str) -> AsyncVHost:
        """Return a view of another virtual host, which must exist when it is used."""
        return AsyncVHost(self._core, name)
