"""Passwords hidden from logs and tracebacks, RabbitMQ's salted password hashes, and the rules for new passwords.

A hash is base64 of a 4-byte salt and the digest of salt and password (rabbit_password), so that users can be
imported from RabbitMQ's definitions and exported to them.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable
from typing import Final

from leveret.broker.auth.name_patterns import Matcher

SHA256: Final = "rabbit_password_hashing_sha256"
"""RabbitMQ's name of its default algorithm, as in the field `hashing_algorithm` of definitions."""

SHA512: Final = "rabbit_password_hashing_sha512"

MD5: Final = "rabbit_password_hashing_md5"  # that of users of RabbitMQ before 3.6; never of new passwords

_DIGESTS = {SHA256: "sha256", SHA512: "sha512", MD5: "md5"}
_SALT_SIZE = 4

ALGORITHMS: Final = frozenset(_DIGESTS)  # the names of all algorithms


class Password:
    """A password in clear text, kept only during a login; octets that are not UTF-8 are escaped."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Password(***)"

    @property
    def blank(self) -> bool:
        """True if the password is empty; no login with it may succeed."""
        return not self._text

    def octets(self) -> bytes:
        """Return the password itself."""
        return self._text.encode("utf-8", "surrogateescape")


def hash_password(password: Password, algorithm: str = SHA256, salt: bytes | None = None) -> str:
    """Hash a password with a random salt of 4 bytes, or with the given one; raises ValueError as `check_password`."""
    salt = os.urandom(_SALT_SIZE) if salt is None else salt
    return base64.b64encode(salt + _digest(algorithm, salt, password)).decode()


def check_password(password: Password, password_hash: str, algorithm: str = SHA256) -> bool:
    """Return whether a password matches a hash; the comparison takes constant time.

    A blank password and an invalid hash (such as '', which locks a user out) never match. Raises ValueError for an
    unknown algorithm.
    """
    try:
        stored = base64.b64decode(password_hash, validate=True)
    except binascii.Error:
        stored = b""
    expected = stored[:_SALT_SIZE] + _digest(algorithm, stored[:_SALT_SIZE], password)
    return hmac.compare_digest(stored, expected) and not password.blank


def hash_octets(algorithm: str) -> int:
    """Return the size of a hash, with its salt and not in base64, in bytes; `algorithm` is one of `ALGORITHMS`."""
    return _SALT_SIZE + hashlib.new(_DIGESTS[algorithm], usedforsecurity=False).digest_size


def _digest(algorithm: str, salt: bytes, password: Password) -> bytes:
    if algorithm not in _DIGESTS:
        raise ValueError(f"unknown password hashing algorithm '{algorithm}'")
    return hashlib.new(_DIGESTS[algorithm], salt + password.octets(), usedforsecurity=False).digest()


class WeakPasswordError(ValueError):
    """A password does not fulfil the rules; RabbitMQ's text, without the password."""


class PasswordPolicy:
    """The rules for new passwords: RabbitMQ's `credential_validator.*` and `password_hashing_module`.

    They apply to passwords in clear text that are set from now on; hashes, and passwords that are there, are not
    looked at.

    `min_length` is in bytes; `matches` is true for passwords that are allowed, None for any.
    """

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
