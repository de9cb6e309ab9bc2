"""The client of the management API: over the socket in a data directory, or over HTTP (driver: it waits)."""

import base64
import http.client
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.errors import CtlError, refused
from leveret.broker.cli.ctl.escaping import printable_lines
from leveret.broker.http.socket_path import NAME as SOCKET_NAME, in_directory

SECONDS = 60.0
IMPORT_SECONDS = 600.0
"""Time for an import of definitions, which is not cut off by the broker earlier."""
MANAGEMENT_PORT = 15672
DISK_FULL = "disk_full"
"""The word for a change that is not on disk, and would be lost with the broker."""
_ESCAPED = "surrogateescape"
"""The form of bytes that are not UTF-8 in arguments, as the system gives them."""


class ApiError(Exception):
    """The broker answered with an error.

    Attributes:
        status: the HTTP status.
        reason: its text, in which what would act on a terminal is escaped.
        kind: the broker's word for it, such as `disk_full`.

    """

    def __init__(self, status: int, reason: str, kind: str = "") -> None:
        self.status = status
        self.kind = kind
        self.reason = printable_lines(reason)
        super().__init__(self.reason)


class _SocketConnection(http.client.HTTPConnection):
    """A connection to the socket in a data directory, whose path may be of any length."""

    def __init__(self, directory: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._directory = directory

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            in_directory(self._directory, SOCKET_NAME, self.sock.connect)
        except OSError:
            self.close()
            raise


class ApiClient:
    """Sends requests, one after the other.

    Args:
        where: a data directory, or an HTTP URI with a login.
        seconds: time that each request may take.

    Attributes:
        place: description of where the broker is, for messages.

    Raises:
        CtlError: the URI cannot be used.

    """

    def __init__(self, where: Path | str, seconds: float = SECONDS) -> None:
        self._headers: dict[str, str] = {}
        self._prefix = "/api/"
        self._connection: http.client.HTTPConnection
        if isinstance(where, Path):
            self.place = f"the broker on {where}"
            self._connection = _SocketConnection(where, seconds)
            self._directory: Path | None = where
            return
        self._directory = None
        parts = urlsplit(where)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise CtlError(f"--uri {where}: expected http://USER:PASSWORD@HOST:PORT", exit_codes.USAGE)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            port = parts.port or MANAGEMENT_PORT
        except ValueError:
            raise CtlError(f"--uri {where}: the port is not a number", exit_codes.USAGE) from None
        self.place = f"{parts.scheme}://{parts.hostname}:{port}"
        self._connection = kind(parts.hostname, port, timeout=seconds)
        name, password = (
            unquote(each or "guest", errors=_ESCAPED) for each in (parts.username, parts.password)
        )
        login = f"{name}:{password}".encode("utf-8", _ESCAPED)
        self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode()
        prefix = quote(parts.path, safe="/%", errors=_ESCAPED)
        self._prefix = f"{prefix.rstrip('/').removesuffix('/api')}/api/"

    @property
    def is_local(self) -> bool:
        """True for the socket in a data directory."""
        return self._directory is not None

    def allow(self, seconds: float) -> None:
        """Set the time that each further request may take, before the first one."""
        self._connection.timeout = seconds

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def get(self, *path: str, **query: str) -> Any:
        """Return the answer to a GET of the path with these segments. Raises as `request`."""
        return self.request("GET", path, query=query)

    def put(self, *path: str, body: Any = None) -> Any:
        """Send a PUT. Raises as `request`."""
        return self.request("PUT", path, {} if body is None else body)

    def post(self, *path: str, body: Any = None) -> Any:
        """Send a POST. Raises as `request`."""
        return self.request("POST", path, {} if body is None else body)

    def delete(self, *path: str, headers: dict[str, str] | None = None) -> Any:
        """Send a DELETE. Raises as `request`."""
        return self.request("DELETE", path, headers=headers)

    def request(
        self,
        method: str,
        path: Iterable[str],
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Send a request.

        Args:
            method: the method.
            path: segments of the path after `/api/`, as they are.
            body: encoded as JSON; octets are sent as they are.
            query: parameters.
            headers: further headers.

        Returns:
            The decoded answer, the text of an answer that is plain text, or None for an empty one.

        Raises:
            ApiError: the broker answered with an error.
            CtlError: there is no broker, or it does not let us in; or a text outside of the path is not UTF-8.

        """
        target = self._target(path, query)
        octets = body if isinstance(body, bytes) else None if body is None else _json(body)
        sent: dict[str, str | bytes] = dict(self._headers)
        sent |= {name: value.encode("utf-8", _ESCAPED) for name, value in (headers or {}).items()}
        if octets is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            self._connection.request(method, target, octets, sent)
            answer = self._connection.getresponse()
            content = answer.read()
        except TimeoutError:
            raise CtlError(f"Error: {self.place} did not answer in time", exit_codes.TEMPORARY) from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        if answer.status >= http.client.BAD_REQUEST:
            raise self._failed(answer.status, content)
        if (answer.getheader("Content-Type") or "").startswith("text/plain"):
            return content.decode()
        try:
            return msgspec.json.decode(content) if content else None
        except msgspec.DecodeError:
            text = f"Error: {self.place} is not a management API: its answer is not JSON"
            raise CtlError(text, exit_codes.UNAVAILABLE) from None

    def lines(self, *path: str, **query: str) -> Iterator[bytes]:
        """Yield the lines of an answer as they come, without their ends; closes the connection at the end.

        Each may take as long as a request. Raises as `request`.
        """
        try:
            self._connection.request("GET", self._target(path, query), headers=self._headers)
            answer = self._connection.getresponse()
            if answer.status >= http.client.BAD_REQUEST:
                raise self._failed(answer.status, answer.read())
            rest = b""
            while (
                octets := answer.read1()
            ):  # `readline` takes an answer that breaks off for one that has ended
                *lines, rest = (rest + octets).split(b"\n")
                yield from lines
            if rest:
                yield rest
        except TimeoutError:
            raise CtlError(f"Error: {self.place} did not answer in time", exit_codes.TEMPORARY) from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            self.close()

    def _target(self, path: Iterable[str], query: Mapping[str, str] | None) -> str:
        target = self._prefix + "/".join(quote(each, safe="", errors=_ESCAPED) for each in path)
        if query:
            _check_texts(query)
            target += "?" + "&".join(f"{key}={quote(value)}" for key, value in query.items())
        return target

    def _failed(self, status: int, content: bytes) -> Exception:
        kind = ""
        try:
            answer = msgspec.json.decode(content)
            reason, kind = answer["reason"], str(answer.get("error", ""))
        except (msgspec.DecodeError, KeyError, TypeError):
            reason = f"HTTP status {status}"
        if status == http.client.UNAUTHORIZED:
            return CtlError(f"Error: {self.place} refused the request: {reason}", exit_codes.NO_PERMISSION)
        return ApiError(status, reason if isinstance(reason, str) else str(reason), kind)

    def _unreachable(self, error: Exception) -> CtlError:
        text = f"Error: unable to connect to {self.place}"
        if self._directory is None:
            return CtlError(f"{text}: {error}", exit_codes.UNAVAILABLE)
        if isinstance(error, PermissionError):
            text = (
                f"Error: {self._directory / SOCKET_NAME} belongs to another user: run this as the user of the broker "
                "or as root, or use --uri http://USER:PASSWORD@HOST:15672"
            )
            return CtlError(text, exit_codes.NO_PERMISSION)
        if not self._directory.is_dir():
            hint = (
                "the directory does not exist; --data-dir names the one that `leveret serve` was started with"
            )
        else:
            hint = (
                "it is not running; start it with `leveret serve`, or name another directory with --data-dir"
            )
        return CtlError(f"{text}: {hint}", exit_codes.UNAVAILABLE)


def _json(body: Any) -> bytes:
    """Return a body as JSON; raises CtlError for a text that is not UTF-8, for which JSON has no form."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        _check_texts(body)
        raise


def _check_texts(values: Mapping[str, Any]) -> None:
    """Raise CtlError with the name of a value with a text that is not UTF-8, but not with it: it may be a secret."""
    for name, value in values.items():
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            raise CtlError(f"Error: {name}: not UTF-8", exit_codes.USAGE) from None


def explained(error: ApiError) -> CtlError:
    """Return the error of a command whose request the broker refused; its reason is escaped for HTML."""
    reason = error.reason.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    if error.status == http.client.TOO_MANY_REQUESTS:
        return CtlError(f"Error:\n{reason}", exit_codes.TEMPORARY)
    if error.kind == DISK_FULL:
        return CtlError(f"Error:\n{reason}", exit_codes.CANNOT_CREATE)
    return refused(reason)
