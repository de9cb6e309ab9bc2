"""The client of the management API: over the socket in a data directory, or over HTTP (driver: it waits)."""

import base64
import contextlib
import http.client
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.output import ApiError, CtlError
from leveret.broker.http import running_brokers
from leveret.broker.http.running_brokers import NAME as SOCKET_NAME, in_directory

SECONDS = 60.0
IMPORT_SECONDS = 600.0  # time for an import of definitions, which is not cut off by the broker earlier
MANAGEMENT_PORT = 15672
_ESCAPED = "surrogateescape"  # the form of bytes that are not UTF-8 in arguments, as the system gives them


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
    """Sends requests, one after the other, each of which may take so many seconds.

    The broker is where a data directory says, or an HTTP URI with a login. Raises CtlError for a URI of another form.
    """

    def __init__(self, where: Path | str, seconds: float = SECONDS) -> None:
        self._headers: dict[str, str] = {}
        self.missing = ""  # processes without whose virtual hosts an answer was given
        self._prefix = "/api/"
        self._connection: http.client.HTTPConnection
        self._directory = where if isinstance(where, Path) else None
        self.place: str  # description of the broker, for messages
        if isinstance(where, Path):
            self.place = f"the broker on {where}"
            self._connection = _SocketConnection(where, seconds)
            return
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

    def allow(self, seconds: float) -> None:
        """Set the time that each further request may take, before the first one."""
        self._connection.timeout = seconds

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def get(self, *path: str, **query: str) -> Any:
        """Return the answer to a GET of the path with these segments. Raises as `request`."""
        return self.request("GET", path, query=query)

    def find(self, *path: str) -> Any:
        """Return the answer to a GET, None if there is no such object. Raises as `request`."""
        try:
            return self.get(*path)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            raise

    def put(self, *path: str, body: Any = None) -> Any:
        """Send a PUT. Raises as `request`."""
        return self.request("PUT", path, {} if body is None else body)

    def post(self, *path: str, body: Any = None) -> Any:
        """Send a POST. Raises as `request`."""
        return self.request("POST", path, {} if body is None else body)

    def delete(self, *path: str, **more: Any) -> Any:
        """Send a DELETE, with what `request` takes more. Raises as `request`."""
        return self.request("DELETE", path, **more)

    def request(
        self,
        method: str,
        path: Iterable[str],
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        missing: CtlError | None = None,
    ) -> Any:
        """Send a request; returns the decoded answer, its text if it is plain text, or None for an empty one.

        The path has the segments after `/api/`. A body is encoded as JSON; octets are sent as they are. Raises ApiError
        if the broker answers with an error, CtlError if there is none, if it does not let us in, or if a text outside
        of the path is not UTF-8; `missing`, if given, for an object that does not exist.
        """
        target = self._target(path, query)
        octets = body if isinstance(body, bytes) else None if body is None else _json(body)
        sent: dict[str, str | bytes] = dict(self._headers)
        sent |= {name: value.encode("utf-8", _ESCAPED) for name, value in (headers or {}).items()}
        if octets is not None:
            sent.setdefault("Content-Type", "application/json")
        with self._connection_errors():
            self._connection.request(method, target, octets, sent)
            answer = self._connection.getresponse()
            content = answer.read()
        if missing is not None and answer.status == http.client.NOT_FOUND:
            raise missing
        if answer.status >= http.client.BAD_REQUEST:
            raise self._failed(answer.status, content)
        self.missing = answer.getheader("X-Leveret-Missing") or self.missing
        if (answer.getheader("Content-Type") or "").startswith("text/plain"):
            return content.decode()
        try:
            return msgspec.json.decode(content) if content else None
        except msgspec.DecodeError:
            raise CtlError(f"Error: {self.place} is not a management API: its answer is not JSON") from None

    def lines(self, *path: str, **query: str) -> Iterator[bytes]:
        """Yield the lines of an answer as they come, without their ends; closes the connection at the end.

        Each may take as long as a request. Raises as `request`.
        """
        with contextlib.closing(self), self._connection_errors():
            self._connection.request("GET", self._target(path, query), headers=self._headers)
            answer = self._connection.getresponse()
            if answer.status >= http.client.BAD_REQUEST:
                raise self._failed(answer.status, answer.read())
            rest = b""
            # `readline` takes an answer that breaks off for one that has ended
            while octets := answer.read1():
                *lines, rest = (rest + octets).split(b"\n")
                yield from lines
            if rest:
                yield rest

    def _target(self, path: Iterable[str], query: Mapping[str, str] | None) -> str:
        target = self._prefix + "/".join(quote(each, safe="", errors=_ESCAPED) for each in path)
        if query:
            _check_texts(query)
            target += "?" + "&".join(f"{key}={quote(value)}" for key, value in query.items())
        return target

    @contextlib.contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise CtlError(f"Error: {self.place} did not answer in time", exit_codes.TEMPORARY) from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _failed(self, status: int, content: bytes) -> CtlError:
        kind = ""
        try:
            answer = msgspec.json.decode(content)
            reason, kind = answer["reason"], str(answer.get("error", ""))
        except (msgspec.DecodeError, KeyError, TypeError):
            reason = f"HTTP status {status}"
        if status == http.client.UNAUTHORIZED:
            return CtlError(f"Error: {self.place} refused the request: {reason}", exit_codes.NO_PERMISSION)
        return ApiError(status, str(reason), kind)

    def _unreachable(self, error: Exception) -> CtlError:
        text = f"Error: unable to connect to {self.place}"
        if self._directory is None:
            return CtlError(f"{text}: {error}")
        if isinstance(error, PermissionError):
            return CtlError(
                f"Error: {self._directory / SOCKET_NAME} belongs to another user: run this as the user of the broker "
                "or as root, or use --uri http://USER:PASSWORD@HOST:15672",
                exit_codes.NO_PERMISSION,
            )
        if isinstance(self._directory, running_brokers.Several):
            listed = "".join([f"\n  {each}" for each in running_brokers.found(os.environ)])
            return CtlError(
                f"Error: several brokers of this user run: choose one with --data-dir or LEVERET_DATA_DIR{listed}",
                exit_codes.USAGE,
            )
        if self._directory.is_dir():
            hint = (
                "it is not running; start it with `leveret serve`, or name another directory with --data-dir"
            )
        else:
            hint = (
                "the directory does not exist; --data-dir names the one that `leveret serve` was started with"
            )
        return CtlError(f"{text}: {hint}")


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
