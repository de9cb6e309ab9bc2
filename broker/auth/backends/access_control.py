"""The chain of backends: who lets a user in, and who decides about the user from then on (driver).

Theory. The steps of the chain are asked in order, as in RabbitMQ (rabbit_access_control): the first one that lets the
user in decides about permissions, too. One that refuses, or cannot decide, is passed over; if none is left, the login
is refused with the reason of the last. For permissions no other backend is asked: whatever a backend cannot decide is
refused.

The callers are connections, which never wait: each question is a task, and its answer a step of the loop. A connection
has one question at a time, so there are at most as many tasks as connections.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.auth.backends.backend import (
    Backend,
    BackendError,
    CacheBackend,
    InternalBackend,
    UnreachableError,
    joined,
)
from leveret.broker.auth.backends.guarded import CALLER, Counted, Guarded
from leveret.broker.auth.backends.settings import BackendSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import REFUSED, Decision, Question, Rights
from leveret.broker.auth.users import (
    BackendUser,
    Login,
    LoginRefusedError,
    LoopbackOnlyError,
    Users,
    is_loopback,
)
from leveret.broker.process.shares import origin

if TYPE_CHECKING:
    from leveret.broker.auth.backends.issuer import CodeLogin
    from leveret.broker.auth.sessions import Sessions
    from leveret.broker.process.audit_log import AuditLog

log = logging.getLogger("leveret.connection")

VHOSTS_AT_ONCE = 16  # questions about vhosts that one request of the management API has under way


class _RightsByVHost(dict[str, Rights]):
    """The rights of one user by vhost, made when they are asked for."""

    def __init__(self, make: Callable[..., Rights]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, vhost: str) -> Rights:
        made = self[vhost] = self._make(vhost=vhost)
        return made


class ChainStep(NamedTuple):
    """A step of the chain: who authenticates, and who decides about permissions; often the same backend."""

    authn: Backend
    authz: Backend


class AccessControl:
    """The chain; `users` has the names of loopback users, `counted` are the backends whose questions are counted.

    A connection remembers a decision for some `seconds`; `now` is seconds of a monotonic clock. `in_step` does some
    work as a step of the loop, followed by a turn. `epoch` grows when all decisions are to be forgotten; `code_login`
    is the login by an identity provider, or None.
    """

    def __init__(
        self,
        steps: Iterable[ChainStep],
        users: Users,
        *,
        counted: Iterable[Counted] = (),
        seconds: float,
        now: Callable[[], float],
        in_step: Callable[[Callable[[], object]], None],
    ) -> None:
        self._steps = tuple(steps)
        self._users = users
        self._seconds = seconds
        self._now = now
        self._in_step = in_step
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._counted = tuple(counted)
        self.epoch = 0
        self.code_login: CodeLogin | None = None

    @property
    def backends(self) -> list[Backend]:
        """All backends of the chain."""
        return list(dict.fromkeys(each for step in self._steps for each in step))

    @property
    def counts(self) -> dict[str, tuple[dict[str, int], float]]:
        """The questions by outcome, and the seconds that they have taken, by RabbitMQ's name of the backend."""
        return {each.module: (each.outcomes, each.seconds) for each in self._counted}

    def forget(self) -> None:
        """Forget what is cached, and have connections ask again about all that they use, within a second."""
        self.epoch += 1
        for backend in self.backends:
            if isinstance(backend, CacheBackend):
                backend.clear()

    async def close(self) -> None:
        """End all questions, and close the backends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for backend in self.backends:
            await backend.close()

    # -- for connections ----------------------------------------------------------------------------------------------

    def log_in(
        self,
        name: str,
        password: Password | None,
        peer: str,
        done: Callable[[BackendUser | LoginRefusedError], object],
    ) -> None:
        """Authenticate a user; without a password, one whom a certificate or the configuration has authenticated."""
        refusal = LoginRefusedError(f"user '{name}' - internal error")
        self._run(self._login(name, password, peer), done, refusal)

    def renew(
        self,
        user: BackendUser,
        password: Password,
        peer: str,
        done: Callable[[BackendUser | LoginRefusedError], object],
    ) -> None:
        """Authenticate a user again, by a new secret; a backend whose logins do not end accepts any, as RabbitMQ's."""
        refusal = LoginRefusedError(f"user '{user.name}' - internal error")
        self._run(self._renewed(user, password, peer), done, refusal)

    def ask_vhost(self, user: BackendUser, vhost: str, peer: str, done: Callable[[Decision], object]) -> None:
        """Ask whether a user may open connections to a vhost."""
        self._run(self.may_access(user, vhost, peer), done, REFUSED)

    def ask(
        self, user: BackendUser, vhost: str, peer: str, question: Question, done: Callable[[Decision], object]
    ) -> None:
        """Ask all backends of a user."""
        self._run(self._may(user, vhost, peer, question), done, REFUSED)

    def rights(self, user: BackendUser, vhost: str, peer: str) -> Rights:
        """Return the rights of a user in a vhost, of which none is known yet."""
        return Rights(self, user, vhost, peer, self._seconds, self._now)

    # -- for the web page ---------------------------------------------------------------------------------------------

    def find_provider(self, done: Callable[[str | LoginRefusedError], object]) -> None:
        """Ask where the identity provider lets users log in."""
        self._run(self._authorization_endpoint(), done, LoginRefusedError("internal error"))

    async def _authorization_endpoint(self) -> str:
        assert self.code_login is not None  # noqa: S101 - the caller has looked
        try:
            return (await self.code_login.endpoints()).authorization
        except BackendError as error:
            raise LoginRefusedError(str(error)) from None

    def log_in_by_code(
        self,
        code: str,
        verifier: str,
        redirect_uri: str,
        peer: str,
        done: Callable[[tuple[BackendUser, Password | None] | LoginRefusedError], object],
    ) -> None:
        """Authenticate a user whom the identity provider has sent back with a code (`CodeLogin.tokens`).

        The answer is the user, and the refresh token if the provider has given one.
        """
        self._run(
            self._login_by_code(code, verifier, redirect_uri, peer), done, LoginRefusedError("internal error")
        )

    async def _login_by_code(
        self, code: str, verifier: str, redirect_uri: str, peer: str
    ) -> tuple[BackendUser, Password | None]:
        assert self.code_login is not None  # noqa: S101 - the caller has looked
        CALLER.set((origin(peer), ""))
        try:
            tokens = await self.code_login.tokens(code, verifier, redirect_uri)
        except BackendError as error:
            raise LoginRefusedError(str(error)) from None
        # only where tokens are checked: others have no business with them
        taking = [at for at, step in enumerate(self._steps) if step.authn.renews]
        return await self._login("", Password(tokens.access), peer, taking), tokens.refresh

    async def renewed_by(
        self, refresh: Password, user: BackendUser, peer: str
    ) -> tuple[BackendUser, Password | None]:
        """Return the user of a session as a new token of the provider has it, and the next refresh token.

        Raises LoginRefusedError if the provider refuses, or the new token is none of the user; BackendError if the
        provider does not answer.
        """
        assert self.code_login is not None  # noqa: S101 - it has begun the session
        CALLER.set((origin(peer), user.name))
        tokens = await self.code_login.renewed(refresh)
        return await self._renewed(user, Password(tokens.access), peer), tokens.refresh

    def keep_sessions(self, sessions: "Sessions", audit: "AuditLog", wall: Callable[[], int]) -> None:
        """Renew the sessions that have a refresh token, as long as there are any; `wall` as for `access_control`."""
        from leveret.broker.auth.backends.issuer import SessionRenewal  # noqa: PLC0415 - only if it is used

        if self._renewing is None or self._renewing.done():
            work = SessionRenewal(sessions, audit, self._now, wall, self.renewed_by).run()
            self._renewing = self._run(work, lambda _: None, None)

    # -- for the management API ---------------------------------------------------------------------------------------

    async def logged_in(self, name: str, password: Password, peer: str) -> BackendUser | LoginRefusedError:
        """Return the user of a login, or the reason of its refusal."""
        try:
            return await self._login(name, password, peer)
        except LoginRefusedError as error:
            return error.with_traceback(None)

    async def seeing(self, user: BackendUser, vhosts: Iterable[str], peer: str) -> BackendUser:
        """Return the user with those of the given vhosts that it may access, and no other."""
        places = asyncio.Semaphore(VHOSTS_AT_ONCE)

        async def asked(vhost: str) -> tuple[str, bool]:
            async with places:
                return vhost, (await self.may_access(user, vhost, peer)).is_allowed

        answers = await asyncio.gather(*map(asked, vhosts))
        seen = frozenset(vhost for vhost, is_allowed in answers if is_allowed)
        return replace(user, vhosts=seen, rights=_RightsByVHost(partial(self.rights, user, peer=peer)))

    # -- the chain ----------------------------------------------------------------------------------------------------

    async def _login(
        self, name: str, password: Password | None, peer: str, positions: Iterable[int] | None = None
    ) -> BackendUser:
        refusal = LoginRefusedError(f"user '{name}' - invalid credentials")
        if not _is_text(name):  # nobody is asked what a service may not be able to take
            raise refusal
        CALLER.set((origin(peer), name))
        for position in range(len(self._steps)) if positions is None else positions:
            try:
                user = await self._step(position, name, password)
            except LoginRefusedError as error:
                refusal = error
                continue
            except BackendError as error:
                module = self._steps[position].authn.module
                refusal = LoginRefusedError(f"user '{name}' - {module} failed authenticating: {error}")
                continue
            self._check_host(user, peer)
            return user
        raise refusal

    def _check_host(self, user: BackendUser, peer: str) -> None:
        """Raise LoopbackOnlyError for a user who may log in from this host only."""
        # Directories and many services ignore upper and lower case, so any spelling of a name may be that user; names
        # of the internal database are exact.
        restricted = self._users.loopback_users
        if self._steps[user.authenticator].authn.is_local:
            is_restricted = user.name in restricted
        else:
            is_restricted = user.name.casefold() in {each.casefold() for each in restricted}
        if is_restricted and not is_loopback(peer):
            raise LoopbackOnlyError(f"user '{user.name}' can only connect via localhost")

    async def _step(self, position: int, name: str, password: Password | None) -> BackendUser:
        authn, authz = self._steps[position]
        login = await (authn.find(name) if password is None else authn.log_in(name, password))
        found = login if authz is authn else await authz.find(login.name)
        _, tags, _, expires = joined(login, found)
        return BackendUser(
            login.name,
            "",
            tags,
            authorizers=((authz, found),),
            authenticator=position,
            expires=expires,
            login_expires=expires,
        )

    async def _renewed(self, user: BackendUser, password: Password, peer: str) -> BackendUser:
        if not self._steps[user.authenticator].authn.renews:
            return user
        CALLER.set((origin(peer), user.name))
        try:
            new = await self._step(user.authenticator, user.name, password)
        except BackendError as error:
            raise LoginRefusedError(f"user '{user.name}' - {error}") from None
        if new.name != user.name:
            raise LoginRefusedError(f"user '{user.name}' - the new secret is that of another user")
        self._check_host(new, peer)
        return new

    async def may_access(self, user: BackendUser, vhost: str, peer: str) -> Decision:
        """Return whether a user may access a vhost."""
        return await self._decided(user, peer, lambda backend, login: backend.may_access(login, vhost, peer))

    async def _may(self, user: BackendUser, vhost: str, peer: str, question: Question) -> Decision:
        async def ask(backend: Backend, login: Login) -> bool:
            has_say = question.key is None or backend.has_topics
            return not has_say or await backend.may(login, vhost, question)

        return await self._decided(user, peer, ask)

    async def _decided(
        self, user: BackendUser, peer: str, ask: Callable[[Backend, Login], Awaitable[bool]]
    ) -> Decision:
        """Return the decision of all backends of a user: with RabbitMQ's words for what one could not decide."""
        CALLER.set((origin(peer), user.name))
        for backend, login in user.authorizers:
            try:
                if not await ask(backend, login):
                    return REFUSED
            except BackendError as error:
                text = f", backend {backend.module} returned an error: {error}"
                return Decision(False, text, is_unreachable=isinstance(error, UnreachableError))
        return Decision(bool(user.authorizers))

    def _run(
        self, work: Coroutine[Any, Any, Any], done: Callable[[Any], object], otherwise: Any
    ) -> asyncio.Task[None]:
        """Run a coroutine as a task, and call `done` with its result; with `otherwise` if it has a bug."""
        task = asyncio.get_running_loop().create_task(self._answered(work, done, otherwise))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answered(
        self, work: Coroutine[Any, Any, Any], done: Callable[[Any], object], otherwise: Any
    ) -> None:
        try:
            answer = await work
        except LoginRefusedError as error:
            answer = error.with_traceback(None)
        except Exception:
            log.exception("internal error in an authentication backend: access is refused")
            answer = otherwise
        self._in_step(lambda: done(answer))


def _is_text(name: str) -> bool:
    """Return whether the octets of a name were UTF-8, and none of them is 0."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


# -- a chain of the configuration -------------------------------------------------------------------------------------


def access_control(
    settings: BackendSettings,
    users: Users,
    *,
    now: Callable[[], float],
    wall: Callable[[], int],
    in_step: Callable[[Callable[[], object]], None],
) -> AccessControl:
    """Return the chain of a configuration; `wall` is milliseconds since the epoch, `now` and `in_step` as above.

    Raises OSError if a file of the settings cannot be used, ValueError if one has no key.
    """
    made: dict[str, Backend] = {}

    def backend(name: str) -> Backend:
        if name not in made:
            made[name] = new(name)
        return made[name]

    def new(name: str) -> Backend:
        if name == "internal":
            return InternalBackend(users)
        if name == "http":
            from leveret.broker.auth.backends.http import HTTPBackend  # noqa: PLC0415 - only if it is used

            return Guarded(HTTPBackend(settings.http), settings.http.request_timeout, now)
        if name == "ldap":
            from leveret.broker.auth.backends.ldap import LDAPBackend  # noqa: PLC0415 - only if it is used

            return Guarded(LDAPBackend(settings.ldap), settings.ldap.timeout, now)
        if name == "oauth2":
            from leveret.broker.auth.backends.oauth2 import OAuth2Backend  # noqa: PLC0415 - only if it is used

            return Counted(OAuth2Backend(settings.oauth2, now, wall), now)
        cache = settings.cache
        authn, authz = backend(cache.authn), backend(cache.authz)
        return CacheBackend(authn, authz, seconds=cache.ttl, refusals=cache.refusals, now=now, wall=wall)

    steps = [ChainStep(backend(step.authn), backend(step.authz)) for step in settings.chain]
    counted = [each for each in made.values() if isinstance(each, Counted)]
    control = AccessControl(
        steps, users, counted=counted, seconds=settings.cache.ttl, now=now, in_step=in_step
    )
    if settings.login.enabled:
        from leveret.broker.auth.backends.issuer import CodeLogin  # noqa: PLC0415 - only if it is used

        control.code_login = CodeLogin(settings.login, settings.oauth2, now)
    return control
