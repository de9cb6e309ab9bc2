"""The LDAP backend: a directory decides, as with RabbitMQ's plugin rabbitmq_auth_backend_ldap (driver).

A login binds as the user. Permissions and tags are answers of queries (`broker.auth.backends.ldap_queries`), which ask
the directory as the user or as another entry (`auth_ldap.other_bind`). Questions run in a few threads, because the
library blocks; those that need no directory are answered at once.

No directory is asked with an empty password, which would be an anonymous login that succeeds (RFC 4513, 5.1.2), nor
about a name that a directory takes for another one: it ignores spaces around names, characters of no width, and the
difference between compatible forms of a letter (RFC 4518).

Each question opens connections of its own and closes them. The loop ends a question that takes too long: it shuts its
sockets down, so that its thread ends, too. Referrals are not followed: they could send passwords elsewhere.

A question has one of the outcomes of `broker.auth.backends.backend`. A directory that cannot decide about the values
says so by a result: `UndecidedError` for one that follows from them, which refuses, `BackendError` for one of
`FAILURES`.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from leveret.broker.auth.backends.backend import BackendError, RemoteBackend, UnreachableError
from leveret.broker.auth.backends.http import tls_context
from leveret.broker.auth.backends.ldap_queries import (
    Query,
    UndecidedError,
    answer,
    dn_of,
    escaped_in_condition,
    is_plain,
    ldap3,
    needs_directory,
    text_of,
)
from leveret.broker.auth.backends.settings import Bind, LDAPSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import DEFAULT_EXCHANGE, Question as Asked
from leveret.broker.auth.users import Login, LoginRefusedError, is_loopback

SUCCESS, SIZE_LIMIT, NO_SUCH_OBJECT = 0, 4, 32  # codes of results (RFC 4511, appendix A)
FAILURES: Final = frozenset({1, 2, 3, 7, 8, 11, 12, 13, 51, 52, 54, 80})
"""Results that do not follow from the values of a question: the directory, or the settings, are at fault."""
MOST_ENTRIES: Final = 200  # maximum number of entries of a search
MOST_VALUES: Final = 1000  # maximum number of values of an attribute that are looked at


class Question:
    """A question under way, which another thread may cancel.

    It has descriptors of its own for the sockets: those of the sockets may be closed meanwhile, and be another's.
    """

    def __init__(self) -> None:
        self.is_given_up = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def add(self, sock: socket.socket) -> None:
        """Add a socket that the question uses; raises BackendError if it is cancelled."""
        with self._lock:
            if self.is_given_up:
                raise BackendError("timeout")
            self._sockets.append(sock.dup())

    def give_up(self) -> None:
        """Let everything that waits for the directory end. Does not wait."""
        with self._lock:
            self.is_given_up = True
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()


class Directory:
    """The servers of a directory; `tls` is None without TLS."""

    def __init__(self, settings: LDAPSettings, tls: ssl.SSLContext | None) -> None:
        self._settings = settings
        self._ldap3 = ldap3()
        self._tls = tls
        self._wrapping = _wrapping(self._ldap3)

    @contextlib.contextmanager
    def bound(self, question: Question, dn: str = "", password: bytes = b"") -> Iterator["Bound | None"]:
        """Bind as an entry, or anonymously without a name; the result is None if the password is not right.

        Raises BackendError: no server can be reached, or it fails; ValueError for a name without a password, which
        would be an anonymous login with a name.
        """
        if bool(dn) is not bool(password):
            raise ValueError("a name and a password need each other")
        with self._opened(question, dn, password) as connection:
            with _translated():
                connection.bind(read_server_info=False)
            code = _code(connection, "bindResponse", "to bind")
            yield Bound(connection, self._settings) if code == SUCCESS else None

    @contextlib.contextmanager
    def _opened(self, question: Question, dn: str, password: bytes) -> Iterator[Any]:
        """Open a connection to the first server that can be reached."""
        last = BackendError("no server is configured")
        for host in self._settings.servers:
            connection = self._connection(question, host, dn, password)
            try:
                with _translated():
                    connection.open(read_server_info=False)
                    # or the first question after a TLS handshake waits for a delayed ack, 40 ms
                    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if not self._settings.use_ssl:
                        question.add(connection.socket)
                    if self._settings.use_starttls:
                        connection.start_tls(read_server_info=False)
                    connection.socket.settimeout(max(self._settings.timeout, 1))
                self._check_tls(connection)
            except BackendError as error:
                last = error
                _close(connection)
                if question.is_given_up:
                    break
                continue
            try:
                yield connection
            finally:
                _close(connection)
            return
        raise last

    def _check_tls(self, connection: Any) -> None:
        """Raise BackendError if TLS is wanted, and the library has not begun it."""
        if self._tls is not None and not isinstance(connection.socket, ssl.SSLSocket):
            raise UnreachableError("the connection has no TLS")

    def _connection(self, question: Question, host: str, dn: str, password: bytes) -> Any:
        settings, package = self._settings, self._ldap3
        # Each server has its share of the time, so that one that does not answer leaves some for the next.
        seconds = max(settings.timeout / len(settings.servers), 1)
        tls = None
        if self._tls is not None:
            tls = self._wrapping(self._tls, settings.tls.sni or host, question, seconds)
        server = package.Server(
            host,
            port=settings.the_port,
            use_ssl=settings.use_ssl,
            tls=tls,
            get_info=package.NONE,
            connect_timeout=seconds,
        )
        if server.ssl is not settings.use_ssl:  # ldap3 takes addresses, too, whose scheme counts more
            raise BackendError("a server of the settings is not the name of a host")
        return package.Connection(
            server,
            user=dn or None,
            password=password or None,
            authentication=package.SIMPLE if dn else package.ANONYMOUS,
            receive_timeout=int(seconds),
            auto_referrals=False,
            auto_escape=False,
            check_names=False,
            auto_range=False,
            fast_decoder=False,  # the other one fails on referrals
            return_empty_attributes=False,
        )


class Bound:
    """A connection that may ask what queries ask about entries; raises UndecidedError for names that it refuses."""

    def __init__(self, connection: Any, settings: LDAPSettings) -> None:
        self._connection = connection
        self._settings = settings

    def has_value(self, dn: str, attribute: str, value: str) -> bool:
        """Return whether an entry has a value of an attribute."""
        return bool(self._search(dn, _equal(attribute, value), "BASE"))

    def exists(self, dn: str) -> bool:
        """Return whether there is an entry."""
        return self.name(dn) is not None

    def values(self, dn: str, attribute: str) -> list[str]:
        """Return the values of an attribute of an entry."""
        found = [
            value
            for each in self._search(dn, "(objectClass=*)", "BASE", attribute)
            for name, values in each["raw_attributes"].items()
            if _is(attribute, name)
            for value in values
        ]
        if len(found) > MOST_VALUES:
            raise UndecidedError("too many values")
        return [value.decode("utf-8", "surrogateescape") for value in found]

    def groups(self, member: str, attribute: str, *, below: bool) -> list[str]:
        """Return the DNs of the groups that have a member, not more than some hundreds of them."""
        base = self._settings.group_lookup_base or self._settings.dn_lookup_base
        found = self._search(base, _equal(attribute, member), "SUBTREE" if below else "LEVEL") if base else []
        return [each["dn"] for each in found]

    def name(self, dn: str) -> str | None:
        """Return the DN of an entry as the directory writes it; None if there is no such entry."""
        found = self._search(dn, "(objectClass=*)", "BASE")
        return found[0]["dn"] if found else None

    def looked_up(self, text: str) -> str | None:
        """Return the DN of the only entry whose attribute `dn_lookup_attribute` is a text; None if it is not one."""
        settings = self._settings
        found = self._search(
            settings.dn_lookup_base, _equal(settings.dn_lookup_attribute, text), "SUBTREE", limit=2
        )
        return found[0]["dn"] if len(found) == 1 else None

    def _search(
        self, base: str, condition: str, scope: str, attribute: str = "1.1", limit: int = MOST_ENTRIES
    ) -> list[Any]:
        """Return the entries of a search; the attribute 1.1 stands for none."""
        connection = self._connection
        with _translated():
            connection.search(
                base,
                condition,
                scope,
                dereference_aliases="NEVER",
                attributes=[attribute],
                size_limit=limit,
                time_limit=max(int(self._settings.timeout), 1),
            )
        code = _code(connection, "searchResDone", "a search")
        found = [each for each in connection.response or () if each["type"] == "searchResEntry"]
        if code == NO_SUCH_OBJECT:
            return []
        if code == SIZE_LIMIT and limit < MOST_ENTRIES:
            return found * 2  # more than one
        if code != SUCCESS:
            raise UndecidedError(connection.result["description"])
        return found


def _code(connection: Any, kind: str, operation: str) -> int:
    """Return the code of a result, which has to be of the kind that was asked for; raises BackendError."""
    result = connection.result
    if result["type"] != kind:
        raise BackendError(f"the directory answers {operation} by {result['type']}")
    code: int = result["result"]
    if code in FAILURES:
        raise BackendError(f"the directory refuses {operation}: {result['description']}")
    return code


def _is(attribute: str, name: str) -> bool:
    """Return whether a name in an answer is that of an attribute; UndecidedError if some values are left out."""
    wanted, found = attribute.lower(), name.lower()
    if found.startswith(f"{wanted};range="):  # Active Directory: above 1500 values
        raise UndecidedError("too many values")
    return found == wanted


def _equal(attribute: str, value: str) -> str:
    return f"({attribute}={escaped_in_condition(value)})"


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Have UnreachableError for what ldap3 raises of connections, BackendError for the rest; no names in the text."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - octets that are no LDAP show as errors of any kind
        errors = ldap3().core.exceptions
        if isinstance(error, OSError | errors.LDAPCommunicationError | errors.LDAPStartTLSError):
            told = "certificate" in str(error).lower()
            reason = "its certificate is not accepted" if told else "no connection"
            raise UnreachableError(f"{reason} ({type(error).__name__})") from None
        raise BackendError(f"the directory cannot be asked this ({type(error).__name__})") from None


def _close(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.unbind()
    sock = connection.socket
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.close()


def _wrapping(package: Any) -> Any:
    """Return a class for the TLS of ldap3 whose context is ours: its own does not check names by OpenSSL."""

    class Wrapping(package.Tls):  # type: ignore[misc]  # of a package without types
        def __init__(self, context: ssl.SSLContext, name: str, question: Question, seconds: float) -> None:
            super().__init__(validate=ssl.CERT_REQUIRED)
            self._context, self._name, self._question, self._seconds = context, name, question, seconds

        def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
            del do_handshake
            plain = connection.socket
            self._question.add(plain)
            plain.settimeout(self._seconds)
            wrapped = self._context.wrap_socket(
                plain, server_hostname=self._name, do_handshake_on_connect=False
            )
            connection.socket = wrapped
            wrapped.do_handshake()

    return Wrapping


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
    """Return the variables of a user; those of Active Directory if the name has a domain."""
    # Some directories accept other names to log in with than DNs. No group has them, so they are no `user_dn`.
    found = {"username": name} | ({"user_dn": dn} if "=" in dn else {})
    parts = name.split("\\")
    if len(parts) == _DOMAIN_AND_USER and all(parts):
        found |= {"ad_domain": parts[0], "ad_user": parts[1]}
    return found
