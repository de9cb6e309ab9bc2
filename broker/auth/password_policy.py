"""Rules for new passwords, and their hash algorithm: RabbitMQ's `credential_validator.*`, `password_hashing_module`.

They apply to passwords in clear text that are set from now on; hashes, and passwords that are there, are not looked at.
"""

from collections.abc import Callable

from leveret.broker.auth.name_patterns import Matcher
from leveret.broker.auth.passwords import SHA256, Password, hash_password


class WeakPasswordError(ValueError):
    """A password does not fulfil the rules; RabbitMQ's text, without the password."""


class PasswordPolicy:
    """The rules.

    Args:
        algorithm: RabbitMQ's name of the hash algorithm of new passwords.
        min_length: least number of bytes.
        matches: matcher of passwords that are allowed; None for any.

    """

    __slots__ = ("_matches", "_min_length", "algorithm")

    def __init__(
        self,
        algorithm: str = SHA256,
        min_length: int = 0,
        matches: Matcher | Callable[[bytes], object] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self._min_length = min_length
        self._matches = matches

    def check(self, password: Password) -> None:
        """Check a new password; raises WeakPasswordError."""
        octets = password.octets()
        if len(octets) < self._min_length:
            raise WeakPasswordError(f"minimum required password length is {self._min_length}")
        if self._matches is not None and not self._matches(octets):
            raise WeakPasswordError("provided password does not match the validator regular expression")

    def hashed(self, password: Password) -> str:
        """Check a new password; returns its hash."""
        self.check(password)
        return hash_password(password, self.algorithm)
