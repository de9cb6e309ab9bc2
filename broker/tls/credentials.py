"""The certificates of a listener in use: the context of new connections, replaced when files change (driver).

Theory. Each accepted socket gets the context of that moment, so a new one takes effect for the next connection, with
all it says about CAs, versions and hosts; connections that are there keep theirs. A new context is made completely
before it replaces the old one: if a file is missing, or a key does not fit, the old one stays.
"""

import asyncio
import logging
import stat
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from leveret.broker.process.deadlined_thread import SECONDS, in_time, started
from leveret.broker.process.named_files import read_named
from leveret.broker.tls.certificate import CertificateError, CertificateFacts, facts_of_file
from leveret.broker.tls.context import Context, make_context
from leveret.broker.tls.options import TLSFileError, TLSOptions

log = logging.getLogger("leveret.tls")

SOON = (1, 7, 30)  # days before the end of a certificate at which a warning is logged
_DAY = 86400.0


class Loaded(NamedTuple):
    """The contents of the files: the context, and facts about the certificate of each host ('' for the listener)."""

    context: Context
    certificates: dict[str, CertificateFacts]


def load(options: TLSOptions) -> Loaded:
    """Read the files of a listener; takes some milliseconds. Raises TLSFileError."""
    context = make_context(options)
    certificates = {}
    for host, each in options.of_hosts.items():
        if each.certfile is None:
            continue
        try:
            certificates[host] = facts_of_file(read_named(each.certfile))
            key = each.keyfile or each.certfile
            if key.stat().st_mode & stat.S_IROTH:
                log.warning("the private key %s can be read by all users of this host: chmod o-r it", key)
        except (CertificateError, OSError) as error:
            text = f"{each.prefix}.certfile = {each.certfile} cannot be read: {error}"
            raise TLSFileError(text) from None
    return Loaded(context, certificates)


class Credentials:
    """The certificates of one kind of listener. Raises TLSFileError: a file cannot be used.

    `handshake_timeout` is the maximum duration of a handshake in seconds.
    """

    def __init__(self, options: TLSOptions, handshake_timeout: float) -> None:
        self.options = options
        self.handshake_timeout = handshake_timeout or 0.001
        self._seen = stamps(options.files)
        self._looking: asyncio.Future[Stamps] | None = None
        # context: the context for the next connection
        # certificates: facts about the certificates by host
        self.context, self.certificates = load(options)
        # reloads, failures: numbers of successful and of failed reloads
        self.reloads = 0
        self.failures = 0
        # called after each reload, with what is wrong, '' if it has succeeded
        self.on_reload: Callable[[Credentials, str], object] = lambda _credentials, _problem: None
        self._warned: dict[str, tuple[datetime, int]] = {}
        self._reloading = asyncio.Lock()

    @property
    def keys_of(self) -> dict[str, CertificateFacts]:
        """The certificates by the beginning of their keys."""
        return {
            f"{self.name}.sni.{host}" if host else self.name: facts
            for host, facts in self.certificates.items()
        }

    @property
    def name(self) -> str:
        """The beginning of its keys."""
        return self.options.prefix

    async def reload_changed(self) -> None:
        """Reload if a file has changed since the last look; one that does not come back is not followed by another."""
        if self._looking is None or self._looking.done():
            self._looking = started(partial(stamps, self.options.files))
        found = await in_time(self._looking)
        if found != self._seen:
            await self.reload()

    async def reload(self) -> str:
        """Read all files again; returns what is wrong with them, in which case the old ones stay, or ''."""
        async with self._reloading:
            try:
                self._seen = await in_time(started(partial(stamps, self.options.files)))
                loaded = await in_time(started(partial(load, self.options)))
            except (TLSFileError, TimeoutError) as error:
                problem = str(error) or f"the files of {self.name} could not be read in {SECONDS:g} s"
                self.failures += 1
                log.error("TLS certificates not reloaded, the old ones stay in use: %s", problem)  # noqa: TRY400
                self.on_reload(self, problem)
                return problem
            self.reloads += 1
            before = self.certificates
            self.context, self.certificates = loaded
            for host, facts in self.certificates.items():
                what = "reloaded" if before.get(host) == facts else "replaced"
                log.info("TLS certificate %s: %s", what, self._described(host, facts))
            self.on_reload(self, "")
            return ""

    def warn_of_end(self, now: datetime) -> None:
        """Log each certificate that ends soon, or has ended; once for each of `SOON`."""
        for host, facts in self.certificates.items():
            left = (facts.ends - now).total_seconds() / _DAY
            stage = next((days for days in (0, *SOON) if left <= days), None)
            if stage is None or self._warned.get(host) == (facts.ends, stage):
                continue
            self._warned[host] = facts.ends, stage
            text = self._described(host, facts)
            if stage:
                log.warning("TLS certificate ends in %.1f days, renew it: %s", left, text)
            else:
                log.error("TLS certificate has ended, clients will refuse it: %s", text)

    def _described(self, host: str, facts: CertificateFacts) -> str:
        key = f"{self.name}.sni.{host}" if host else self.name
        until = f"{facts.ends:%Y-%m-%d %H:%M} UTC"
        return f"{facts.subject or 'no subject'}, issued by {facts.issuer}, until {until} ({key})"


Stamps = dict[Path, tuple[int, int, int] | None]


def stamps(files: Iterable[Path]) -> Stamps:
    """Return what tells that a file was changed or replaced: number, time and size; None for a missing one."""
    found: Stamps = {}
    for path in files:
        try:
            status = path.stat()  # of what a symbolic link points to, which Kubernetes replaces
        except (OSError, ValueError):  # which a NUL in a name is
            found[path] = None
        else:
            found[path] = status.st_ino, status.st_mtime_ns, status.st_size
    return found
