"""The HTTP backend: a web service decides, as with RabbitMQ's plugin rabbitmq_auth_backend_http (driver).

The parameters and the answers are the plugin's: `allow`, followed by the tags of a user, or `deny`, with status 200 or
201. Anything else is an error. Texts of errors never have the address of a request in them: with GET, its query has the
password.
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp

from leveret.broker.auth.backends.backend import BackendError, RemoteBackend, UnreachableError
from leveret.broker.auth.backends.settings import ClientTLS, HTTPSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import DEFAULT_EXCHANGE, Question
from leveret.broker.auth.users import Login, LoginRefusedError
from leveret.broker.tls.context import client_context, load_certificate

log = logging.getLogger("leveret.connection")

SUCCESS = frozenset({200, 201})
CONNECTIONS = 8  # maximum number of connections to the service
MOST_OCTETS = 8192  # maximum length of an answer


class HTTPBackend(RemoteBackend):
    """The HTTP backend."""

    module = "rabbit_auth_backend_http"
    at_once = CONNECTIONS

    def __init__(self, settings: HTTPSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        paths = (settings.user_path, settings.vhost_path, settings.resource_path, settings.topic_path)
        self._tls: ssl.SSLContext | bool = True
        if any(path.lower().startswith("https:") for path in paths):
            self._tls = tls_context(settings.tls)
        if settings.http_method == "get":
            log.warning(
                "auth_http.http_method is get: passwords are sent in the addresses of requests, which servers and "
                "proxies log; set it to post"
            )

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user whom the service lets in; raises LoginRefusedError."""
        secret = password.octets().decode("utf-8", "surrogateescape")
        return await self._user({"username": name, "password": secret})

    async def find(self, name: str) -> Login:
        """Return the user of that name; raises LoginRefusedError."""
        return await self._user({"username": name})

    async def reach(self) -> None:
        """Ask about a user without a name; raises BackendError."""
        await self._ask(self._settings.user_path, {"username": ""})

    async def _user(self, parameters: Mapping[str, str]) -> Login:
        word, _, rest = (await self._ask(self._settings.user_path, parameters)).partition(" ")
        if word == "deny":
            raise LoginRefusedError(f"user '{parameters['username']}' - denied by the backing HTTP service")
        if word != "allow":
            raise BackendError("answer is neither allow nor deny")
        return Login(parameters["username"], tuple(dict.fromkeys(rest.split())))

    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether the service allows the user a vhost."""
        return await self._decision(
            self._settings.vhost_path,
            {"username": login.name, "vhost": vhost, "ip": peer, "tags": " ".join(login.tags)},
        )

    async def may(self, login: Login, vhost: str, question: Question) -> bool:
        """Return whether the service allows an operation."""
        kind, what, name, key = question
        parameters = {
            "username": login.name,
            "vhost": vhost,
            "resource": what,
            "name": name or DEFAULT_EXCHANGE,
            "permission": kind,
            "tags": " ".join(login.tags),
        }
        if key is None:
            return await self._decision(self._settings.resource_path, parameters)
        variables = {"routing_key": key, "variable_map.username": login.name, "variable_map.vhost": vhost}
        return await self._decision(self._settings.topic_path, parameters | variables)

    async def _decision(self, path: str, parameters: Mapping[str, str]) -> bool:
        answer = await self._ask(path, parameters)
        if answer not in {"allow", "deny"}:
            raise BackendError("answer is neither allow nor deny")
        return answer == "allow"

    async def _ask(self, path: str, parameters: Mapping[str, str]) -> str:
        """Return the answer of the service, in lower case and without space around it; raises BackendError."""
        if self._session is None:
            self._session = self._opened()
        octets = {name: value.encode("utf-8", "surrogateescape") for name, value in parameters.items()}
        form = urlencode(octets)
        more: dict[str, Any] = {"allow_redirects": False, "server_hostname": self._settings.tls.sni or None}
        if self._settings.http_method == "post":
            method, address = "POST", path
            more |= {"data": form.encode(), "headers": {"content-type": "application/x-www-form-urlencoded"}}
        else:
            method, address = "GET", f"{path}{'&' if '?' in path else '?'}{form}"
        try:
            async with self._session.request(method, address, **more) as response:
                if response.status not in SUCCESS:
                    raise BackendError(f"status {response.status}")
                body = await octets_of(response, MOST_OCTETS)
        except aiohttp.ClientConnectorCertificateError:
            raise UnreachableError("the certificate of the service is not accepted") from None
        except (aiohttp.ClientConnectorError, ConnectionError):
            raise UnreachableError("no connection to the service") from None
        except (aiohttp.InvalidURL, aiohttp.ClientResponseError, ValueError) as error:
            raise BackendError(
                type(error).__name__
            ) from None  # it is not asked, or its answer is too long to read
        except aiohttp.ClientError as error:
            raise UnreachableError(type(error).__name__) from None
        if len(body) > MOST_OCTETS:
            raise BackendError("answer is too long")
        return body.decode("utf-8", "replace").strip().lower()

    def _opened(self) -> aiohttp.ClientSession:
        settings = self._settings
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._tls, ttl_dns_cache=10)
        timeout = aiohttp.ClientTimeout(
            total=settings.request_timeout, sock_connect=settings.connection_timeout
        )
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
            await asyncio.sleep(0)  # a turn for transports to close


def tls_context(settings: ClientTLS) -> ssl.SSLContext:
    """Return the TLS context of a client; raises OSError for files that cannot be used, ssl.SSLError among them."""
    context = client_context(settings.cacertfile)
    if settings.verify == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.certfile is not None:
        load_certificate(context, settings.certfile, settings.keyfile, lambda: settings.password)
    return context


async def octets_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of an answer, or so much of it that it is longer than `most`."""
    octets = b""
    while len(octets) <= most and (piece := await response.content.read(most + 1)):
        octets += piece
    return octets
