"""The LDAP backend: a directory decides, as with RabbitMQ's plugin rabbitmq_auth_backend_ldap (driver).

A login binds as the user. Permissions and tags are answers of queries (`broker.auth.backends.ldap_queries`), which ask
the directory as the user or as another entry (`auth_ldap.other_bind`). Questions run in a few threads, because the
library blocks; those that need no directory are answered at once.

No directory is asked with an empty password, which would be an anonymous login that succeeds (RFC 4513, 5.1.2), nor
about a name that a directory takes for another one: it ignores spaces around names, characters of no width, and the
difference between compatible forms of a letter (RFC 4518).
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from leveret.broker.auth.backends.backend import BackendError, RemoteBackend
from leveret.broker.auth.backends.directory import Bound, Directory, Question
from leveret.broker.auth.backends.http import tls_context
from leveret.broker.auth.backends.ldap_queries import (
    Query,
    UndecidedError,
    answer,
    dn_of,
    is_plain,
    needs_directory,
    text_of,
)
from leveret.broker.auth.backends.settings import Bind, LDAPSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import DEFAULT_EXCHANGE, Question as Asked
from leveret.broker.auth.users import Login, LoginRefusedError, is_loopback

T = TypeVar("T")
log = logging.getLogger("leveret.connection")

LONGEST_NAME: Final = 255  # maximum length of the name of a user, in characters
LONGEST_PASSWORD: Final = 4096
"""Maximum length of a password, in octets: a directory ends connections with long requests, as if it had failed."""
_DOMAIN_AND_USER: Final = 2


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of a user; the password only if queries have to bind with it."""

    dn: str
    password: Password | None = field(default=None, compare=False)


class LDAPBackend(RemoteBackend):
    """The LDAP backend; raises ImportError if ldap3 is not installed, OSError if a file cannot be used."""

    module = "rabbit_auth_backend_ldap"

    def __init__(self, settings: LDAPSettings) -> None:
        self._settings = settings
        has_tls = settings.use_ssl or settings.use_starttls
        self.at_once = settings.connection_pool_size
        self._directory = Directory(settings, tls_context(settings.tls) if has_tls else None)
        queries = settings.queries
        self.has_topics = queries.topic_access != ("constant", "true")
        later = (queries.vhost_access, queries.resource_access, queries.topic_access)
        self._binds_later = settings.other_bind.way == "as_user" and any(map(needs_directory, later))
        self._questions: set[Question] = set()
        self._is_closed = False
        self._threads = ThreadPoolExecutor(settings.connection_pool_size, "leveret-ldap")
        far = [host for host in settings.servers if not has_tls and not _is_here(host)]
        if far:
            log.warning(
                "auth_ldap: passwords are sent to %s in clear text; set auth_ldap.use_ssl or auth_ldap.use_starttls",
                ", ".join(far),
            )

    # -- the interface of backends ------------------------------------------------------------------------------------

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who can bind with this password; raises LoginRefusedError."""
        if password.blank:
            raise LoginRefusedError(f"user '{name}' - unauthenticated bind not allowed")
        secret = password.octets()
        if (
            not self._may_have(name) or b"\0" in secret
        ):  # servers written in C may take a password to end there
            raise self._refused(name, "the name or the password has characters that are not allowed")
        if len(secret) > LONGEST_PASSWORD:
            raise self._refused(name, "the password is too long")
        return await self._login_by(name, lambda question: self._logged_in(question, name, password))

    async def find(self, name: str) -> Login:
        """Return the user of that name; raises LoginRefusedError."""
        if not self._may_have(name):
            raise self._refused(name, "the name has characters that are not allowed")
        if self._settings.other_bind.way == "as_user":
            raise self._refused(name, "there is no password, and auth_ldap.other_bind is as_user")
        return await self._login_by(name, lambda question: self._found(question, name))

    async def _login_by(self, name: str, ask: Callable[[Question], Login]) -> Login:
        try:
            return await self._ask(ask)
        except UndecidedError as error:
            raise self._refused(name, f"the directory cannot have it: {error}") from None

    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether the user may open connections to a vhost."""
        del peer
        return await self._decide(self._settings.queries.vhost_access, login, {"vhost": vhost})

    async def may(self, login: Login, vhost: str, question: Asked) -> bool:
        """Return whether the user has a permission."""
        kind, what, name, key = question
        variables = {"vhost": vhost, "resource": what, "name": name or DEFAULT_EXCHANGE, "permission": kind}
        queries = self._settings.queries
        if key is None:
            return await self._decide(queries.resource_access, login, variables)
        return await self._decide(queries.topic_access, login, variables | {"routing_key": key})

    async def reach(self) -> None:
        """Ask for an anonymous login, whatever the answer; raises BackendError."""

        def ask(question: Question) -> None:
            with self._directory.bound(question):
                pass

        await self._ask(ask)

    async def close(self) -> None:
        """Give up all questions and let the threads end; does not wait for them."""
        self._is_closed = True
        for each in self._questions:
            each.give_up()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- in the loop --------------------------------------------------------------------------------------------------

    async def _decide(self, query: Query, login: Login, more: dict[str, str]) -> bool:
        entry: _Entry = login.data
        variables = _variables(login.name, entry.dn) | more

        def ask(question: Question) -> bool:
            return self._as_other(question, entry, lambda bound: answer(query, variables, bound))

        is_allowed = await self._ask(ask) if needs_directory(query) else answer(query, variables, _NONE)
        if self._settings.log:
            told = " ".join(f"{name}={value!r}" for name, value in more.items())
            log.info(
                "LDAP: %r (%s): %s: %s", login.name, entry.dn, told, "allowed" if is_allowed else "refused"
            )
        return is_allowed

    async def _ask(self, ask: Callable[[Question], T]) -> T:
        """Run a question in a thread, and give it up if the caller does."""
        if self._is_closed:
            raise BackendError("it is closed")
        question = Question()

        def work() -> T:
            try:
                return ask(question)
            finally:
                question.close()

        self._questions.add(question)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            question.give_up()
            raise
        finally:
            self._questions.discard(question)

    # -- in threads ---------------------------------------------------------------------------------------------------

    def _logged_in(self, question: Question, name: str, password: Password) -> Login:
        settings = self._settings
        dn: str | None = None
        if settings.dn_lookup_attribute and settings.dn_lookup_bind.way != "as_user":
            dn = self._only(name, self._looked_up(question, name))
        as_name = dn or self._filled(settings.user_bind_pattern or settings.user_dn_pattern, name)
        with self._directory.bound(question, as_name, password.octets()) as bound:
            if bound is None:
                raise self._refused(name, "the directory refuses the password")
            if settings.dn_lookup_attribute:
                dn = dn or self._only(name, bound.looked_up(self._filled(settings.user_dn_pattern, name)))
            entry = _Entry(
                dn or self._filled(settings.user_dn_pattern, name), password if self._binds_later else None
            )
            if settings.other_bind.way == "as_user":
                return self._login(name, entry, bound)
        return self._login_of(question, name, entry)

    def _found(self, question: Question, name: str) -> Login:
        settings = self._settings
        if settings.dn_lookup_attribute:
            dn = self._looked_up(question, name)
        else:
            filled = self._filled(settings.user_dn_pattern, name)
            there = self._as_entry(question, settings.other_bind, lambda bound: bound.exists(filled))
            dn = filled if there else None
        return self._login_of(question, name, _Entry(self._only(name, dn)))

    def _only(self, name: str, dn: str | None) -> str:
        if dn is None:
            raise self._refused(name, "the directory has no such entry, or several")
        return dn

    def _looked_up(self, question: Question, name: str) -> str | None:
        """Return the DN of a user by a search before the login."""
        settings = self._settings
        bind = settings.other_bind if settings.dn_lookup_bind.way == "as_user" else settings.dn_lookup_bind
        text = self._filled(settings.user_dn_pattern, name)
        return self._as_entry(question, bind, lambda bound: bound.looked_up(text))

    def _login_of(self, question: Question, name: str, entry: _Entry) -> Login:
        """Return a user with the tags that another entry than its own asks for."""
        if not needs_directory(self._settings.queries.tags):
            return self._login(name, entry, _NONE)
        return self._as_entry(
            question, self._settings.other_bind, lambda bound: self._login(name, entry, bound)
        )

    def _login(self, name: str, entry: _Entry, bound: Any) -> Login:
        variables = _variables(name, entry.dn)
        tags = tuple(tag for tag, query in self._settings.queries.tags if answer(query, variables, bound))
        if self._settings.log:
            log.info("LDAP: %r is %s, tags: %s", name, entry.dn, " ".join(tags) or "none")
        return Login(name, tuple(dict.fromkeys(tags)), entry)

    def _as_other(self, question: Question, entry: _Entry, ask: Callable[[Bound], bool]) -> bool:
        """Ask as `other_bind` says; returns False if the password of the user is not right any more."""
        bind = self._settings.other_bind
        if bind.way != "as_user":
            return self._as_entry(question, bind, ask)
        if entry.password is None:
            return False
        with self._directory.bound(question, entry.dn, entry.password.octets()) as bound:
            return bound is not None and ask(bound)

    def _as_entry(self, question: Question, bind: Bind, ask: Callable[[Bound], T]) -> T:
        with self._directory.bound(question, bind.dn, bind.password.encode()) as bound:
            if bound is None:
                raise BackendError("the directory refuses the broker's own password, or anonymous questions")
            return ask(bound)

    @staticmethod
    def _may_have(name: str) -> bool:
        return len(name) <= LONGEST_NAME and is_plain(name)

    def _filled(self, pattern: str, name: str) -> str:
        """Return the DN of a user, or another text that is no DN, by its pattern."""
        variables = _variables(name, "")
        if "=" in pattern:
            return dn_of(pattern, variables)
        return text_of(pattern, variables)

    def _refused(self, name: str, reason: str) -> LoginRefusedError:
        if self._settings.log:
            log.info("LDAP: %r is refused: %s", name, reason)
        return LoginRefusedError(f"user '{name}' - invalid credentials")


_NONE: Final[Any] = None  # the entries for queries that ask about none


def _is_here(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def _variables(name: str, dn: str) -> dict[str, str]:
    """Return the variables of a user; those of Active Directory if the name has a domain.

    Some directories accept other names to log in with than DNs. No group has them, so they are no `user_dn`.
    """
    found = {"username": name} | ({"user_dn": dn} if "=" in dn else {})
    parts = name.split("\\")
    if len(parts) == _DOMAIN_AND_USER and all(parts):
        found |= {"ad_domain": parts[0], "ad_user": parts[1]}
    return found
