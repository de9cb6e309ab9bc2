"""The certificates of all listeners of a broker: shown, read again, and watched (driver)."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from leveret.broker.process.audit_log import AuditLog
from leveret.broker.tls.options import TLSOptions

if TYPE_CHECKING:
    from leveret.broker.tls.certificate import CertificateFacts
    from leveret.broker.tls.credentials import Credentials


log = logging.getLogger("leveret.tls")

HOUR: Final = 3600.0  # interval of looks for certificates that end soon if nothing is read again


class Certificates:
    """The certificates in use; code that starts a listener with TLS adds its own. `audit` records each reload."""

    def __init__(self, audit: AuditLog) -> None:
        self.audit = audit
        self.credentials: list[Credentials] = []
        self._reloads: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    def add(self, options: TLSOptions, handshake_timeout: float) -> "Credentials":
        """Read the certificates of a listener. Raises TLSFileError."""
        from leveret.broker.tls.credentials import Credentials  # noqa: PLC0415 - only if it is used

        made = Credentials(options, handshake_timeout)
        self.credentials.append(made)
        return made

    @property
    def facts(self) -> "dict[str, CertificateFacts]":
        """The certificates, by the beginning of their keys."""
        return {key: facts for each in self.credentials for key, facts in each.keys_of.items()}

    @property
    def reloads(self) -> dict[str, int]:
        """The numbers of reloads since the start: that succeeded, and that failed."""
        return {
            "succeeded": sum(each.reloads for each in self.credentials),
            "failed": sum(each.failures for each in self.credentials),
        }

    def reload(self, done: Callable[[list[str]], object] = len) -> None:
        """Read all of them again; calls back with what is wrong, in which case the old ones stay."""
        if not self.credentials:
            done([])
            return
        task = asyncio.get_running_loop().create_task(self._reload(done))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self, done: Callable[[list[str]], object]) -> None:
        found = [await each.reload() for each in self.credentials]
        done([problem for problem in found if problem])

    def watch(self, interval: float) -> None:
        """Read them again when their files have changed, and warn of those that end soon, until `forget`.

        `interval` is the seconds between two looks; 0 for none.
        """
        if self.credentials:
            for each in self.credentials:
                each.on_reload = self._record
            self._watch = asyncio.get_running_loop().create_task(self._run(interval))

    async def _run(self, interval: float) -> None:
        while True:
            for each in self.credentials:
                each.warn_of_end(datetime.now(UTC))
            await asyncio.sleep(interval or HOUR)
            for each in self.credentials if interval else ():
                try:
                    await each.reload_changed()
                except Exception:
                    log.exception("cannot look for changed certificates, trying again (%s)", each.name)

    async def forget(self) -> None:
        """Look no more whether certificates have changed."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
            self._watch = None

    def _record(self, credentials: "Credentials", problem: str) -> None:
        outcome = "failed" if problem else "ok"
        found = {
            key: {"subject": facts.subject, "validity": facts.validity}
            for key, facts in credentials.keys_of.items()
        }
        self.audit.record(
            "tls.reload", outcome=outcome, name=credentials.name, reason=problem, certificates=found
        )
