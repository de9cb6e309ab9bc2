"""An LDAP directory, asked in threads (driver): connections of ldap3, which block.

Each question opens connections of its own and closes them. The loop ends a question that takes too long: it shuts its
sockets down, so that its thread ends, too. Referrals are not followed: they could send passwords elsewhere.

A question has one of the outcomes of `broker.auth.backends.backend`. A directory that cannot decide about the values
says so by a result: `UndecidedError` for one that follows from them, which refuses, `BackendError` for one of
`FAILURES`.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any, Final

from leveret.broker.auth.backends.backend import BackendError, UnreachableError
from leveret.broker.auth.backends.ldap_queries import UndecidedError, escaped_in_condition, ldap3
from leveret.broker.auth.backends.settings import LDAPSettings

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
