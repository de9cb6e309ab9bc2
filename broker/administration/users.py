"""Users, their permissions in vhosts, and their limits."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from leveret.broker.administration.access import (
    BadRequestError,
    Group,
    Right,
    authorize,
    checked_limits,
    found_user,
    found_vhost,
    refusals,
)
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.auth.passwords import (
    ALGORITHMS,
    SHA256,
    SHA512,
    Password,
    WeakPasswordError,
    hash_octets,
    hash_password,
)
from leveret.broker.auth.users import USER_LIMITS, User, UserLimits, Users, limits_by_name


class UserAdministration(Group):
    """Users, permissions and limits."""

    # -- users ----------------------------------------------------------------------------------------------------

    def all(self, actor: User | None) -> Iterator[dict[str, Any]]:
        """Yield all users, including their password hashes."""
        users = self._broker.users
        authorize(users, actor, Right.ADMINISTRATOR)
        return (shown_user(user, users.user_limits(user.name)) for user in users.all())

    def get(self, actor: User | None, name: str) -> dict[str, Any]:
        """Return one user; raises NotFoundError."""
        self._check(actor, None, name)
        return shown_user(found_user(self._broker, name), self._broker.users.user_limits(name))

    def put(
        self,
        actor: User | None,
        name: str,
        *,
        tags: Iterable[str],
        password: str | None = None,
        password_hash: str | None = None,
        hashing_algorithm: str = "",
    ) -> None:
        """Add a user, or set password and tags of the existing one of that name, keeping its permissions.

        A hash of '' disables login. With neither a password nor a hash an existing user keeps its own, and a new one
        cannot log in. The algorithm has RabbitMQ's name; '' is that of new passwords, or of a hash of this size. Raises
        BadRequestError.
        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        users = self._broker.changed_users
        hashing_algorithm = hashing_algorithm or _algorithm(password_hash, users.passwords.algorithm)
        check_password_rules(users, password if password_hash is None else None)
        present = users.get(name)
        check_user(name, hashing_algorithm, password_hash, present)
        users.add(user_of(present, name, tags, password, password_hash, hashing_algorithm))

    def delete(self, actor: User | None, name: str) -> None:
        """Delete a user with its permissions, which closes its connections; raises NotFoundError."""
        self._check(actor, None, name)
        self._broker.changed_users.remove(name)

    # -- permissions ------------------------------------------------------------------------------------------------

    def permissions(
        self, actor: User | None, *, vhost: str | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the permissions, only of one vhost or one user if that is given."""
        self._check(actor, vhost, user)
        return (
            {"user": owner, "vhost": place, "configure": row.configure, "write": row.write, "read": row.read}
            for owner, place, row in self._broker.users.permission_rows()
            if vhost in {None, place} and user in {None, owner}
        )

    def set_permissions(
        self, actor: User | None, vhost: str, user: str, *, configure: str, write: str, read: str
    ) -> None:
        """Grant a user access to a vhost; raises NotFoundError, and BadRequestError for an invalid pattern."""
        self._check(actor, vhost, user)
        with refusals(InvalidPatternError, BadRequestError):
            self._broker.changed_users.set_permissions(user, vhost, configure, write, read)

    def clear_permissions(self, actor: User | None, vhost: str, user: str) -> None:
        """Remove a user's permissions in a vhost; raises NotFoundError."""
        self._check(actor, vhost, user)
        self._broker.changed_users.clear_permissions(user, vhost)

    def topic_permissions(
        self, actor: User | None, *, vhost: str | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the topic permissions, only of one vhost or one user if that is given."""
        self._check(actor, vhost, user)
        return (
            {"user": owner, "vhost": place, "exchange": exchange, "write": write, "read": read}
            for owner, place, exchange, write, read in self._broker.users.topic_permission_rows()
            if vhost in {None, place} and user in {None, owner}
        )

    def set_topic_permissions(
        self, actor: User | None, vhost: str, user: str, exchange: str, *, write: str, read: str
    ) -> None:
        """Restrict a user's routing keys at a topic exchange, which need not exist.

        `{username}` and `{vhost}` in the patterns stand for the names. Raises as `set_permissions`.
        """
        self._check(actor, vhost, user)
        with refusals(InvalidPatternError, BadRequestError):
            self._broker.changed_users.set_topic_permissions(user, vhost, exchange, write, read)

    def clear_topic_permissions(
        self, actor: User | None, vhost: str, user: str, exchange: str | None = None
    ) -> None:
        """Remove the topic permissions at one exchange or, for None, at all of the vhost; raises NotFoundError."""
        self._check(actor, vhost, user)
        self._broker.changed_users.clear_topic_permissions(user, vhost, exchange)

    def _check(self, actor: User | None, vhost: str | None, user: str | None) -> None:
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        if vhost is not None and not self._broker.has_vhost(vhost):
            found_vhost(self._broker, vhost)
        if user is not None:
            found_user(self._broker, user)

    # -- limits -----------------------------------------------------------------------------------------------------

    def limits(self, actor: User | None, user: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the limits of one user or of all, of those that have some. As in RabbitMQ everyone may see them."""
        users = self._broker.users
        authorize(users, actor, Right.MANAGEMENT)
        owners = users.all() if user is None else [found_user(self._broker, user)]
        rows = ((owner.name, limits_by_name(users.user_limits(owner.name))) for owner in owners)
        return ({"user": name, "value": limits} for name, limits in rows if limits)

    def set_limits(self, actor: User | None, user: str, limits: Mapping[str, Any]) -> None:
        """Set limits of a user by RabbitMQ's names, negative for none; raises NotFoundError, BadRequestError."""
        self._check(actor, None, user)
        checked = checked_limits(limits, USER_LIMITS, "user-limits")
        users = self._broker.changed_users
        users.set_user_limits(user, user_limits_of(limits_by_name(users.user_limits(user)) | checked))

    def clear_limits(self, actor: User | None, user: str, name: str | None = None) -> None:
        """Remove one of a user's limits, or all of them; raises NotFoundError."""
        self._check(actor, None, user)
        users = self._broker.changed_users
        limits = limits_by_name(users.user_limits(user)) if name is not None else {}
        limits.pop(name or "", None)
        users.set_user_limits(user, user_limits_of(limits))


def _algorithm(password_hash: str | None, usual: str) -> str:
    """Return the algorithm of a hash that names none; RabbitMQ's clients send such hashes."""
    sizes = {4 * -(-hash_octets(each) // 3): each for each in (SHA256, SHA512)}  # of base64
    return sizes.get(len(password_hash or ""), usual)


def check_user(name: str, hashing_algorithm: str, password_hash: str | None, present: User | None) -> None:
    """Raise BadRequestError for a name, algorithm or hash that no user can have; the text does not quote the hash.

    A hash of a size that the algorithm does not have can never match, so its user could not log in. A user that has
    such a hash already (`present`) may keep it.
    """
    if not name:
        raise BadRequestError("user name cannot be empty")
    if hashing_algorithm not in ALGORITHMS:
        raise BadRequestError(f"unknown password hashing algorithm '{hashing_algorithm}'")
    try:
        octets = len(base64.b64decode(password_hash or "", validate=True))
    except ValueError:
        raise BadRequestError("password_hash is not base64; a password belongs in 'password'") from None
    is_kept = present is not None and present.password_hash == password_hash
    if octets not in {0, hash_octets(hashing_algorithm)} and not is_kept:
        fitting = next((each for each in sorted(ALGORITHMS) if hash_octets(each) == octets), None)
        remedy = (
            "export the user again, or set its 'password'"
            if fitting is None
            else f"if it is one of {fitting}, set 'hashing_algorithm' to that"
        )
        raise BadRequestError(
            f"the password_hash of user '{name}' has {octets} bytes, one of {hashing_algorithm} has "
            f"{hash_octets(hashing_algorithm)}: nobody could log in with it; {remedy}"
        )


def check_password_rules(users: Users, password: str | None) -> None:
    """Raise BadRequestError if a new password, if there is one, does not fulfil the rules."""
    try:
        if password is not None:
            users.passwords.check(Password(password))
    except WeakPasswordError as error:
        raise BadRequestError(str(error)) from None


def user_of(
    present: User | None,
    name: str,
    tags: Iterable[str],
    password: str | None,
    password_hash: str | None,
    hashing_algorithm: str,
) -> User:
    """Return a user with the given password or hash, or else with its present one."""
    if password_hash is None and password is not None:
        password_hash = hash_password(Password(password), hashing_algorithm)
    if password_hash is None and present is not None:
        password_hash, hashing_algorithm = present.password_hash, present.hashing_algorithm
    return User(name, password_hash or "", tuple(dict.fromkeys(tags)), hashing_algorithm)


def user_limits_of(limits: Mapping[str, int]) -> UserLimits:
    """Convert limits by RabbitMQ's names to `UserLimits`."""
    return UserLimits(*[limits.get(name) for name in USER_LIMITS])


def shown_user(user: User, limits: UserLimits) -> dict[str, Any]:
    """Return a user as RabbitMQ's API shows it."""
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": list(user.tags),
        "limits": limits_by_name(limits),
    }
