"""Encrypted values of the configuration, in RabbitMQ's format (`encrypted:` and what `rabbitmqctl encode` prints).

A value is base64 of a salt, an initialization vector and the ciphertext of an Erlang term, which is a binary or a
string. The key is derived from a passphrase by PBKDF2. The package `cryptography` is loaded when there is such a value.
"""

import base64
import binascii
import hashlib
import os
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from leveret.broker.config.values import Setting, home_expanded
from leveret.broker.process.named_files import read_named

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

PREFIX: Final = "encrypted:"
PASSPHRASE: Final = "config_entry_decoder.passphrase"  # noqa: S105 - the name of a key
PASSPHRASE_FILE: Final = "config_entry_decoder.passphrase_file"  # noqa: S105 - the name of a key
_SALT = _BLOCK = 16
_VERSION, _BINARY, _STRING = 131, 109, 107  # of Erlang's external term format
_BINARY_HEAD, _STRING_HEAD = struct.Struct(">BBI"), struct.Struct(">BBH")


class Scheme(NamedTuple):
    """Parameters of PBKDF2, and the bytes of the key; values are encrypted with AES in CBC mode."""

    digest: str
    iterations: int
    key_size: int


WRITTEN: Final = Scheme("sha512", 1_000, 32)  # that of values that we encrypt: RabbitMQ's default
READ: Final = (WRITTEN, Scheme("sha256", 1, 16))  # the latter is what rabbitmqctl encode of 3.10 does
"""The schemes that are tried one after another; a wrong one is recognized."""


class UnreadableError(ValueError):
    """A value cannot be decrypted; the text does not contain it."""


def decrypted(written: Iterable[Setting], problems: list[str]) -> list[Setting]:
    """Return settings with their encrypted values decrypted by the passphrase among them, of which the last counts.

    `problems` gets a sentence about each value that cannot be decrypted, which is left out.
    """
    settings = list(written)
    values = {setting.key: setting for setting in settings}
    passphrase = passphrase_of(values, problems) if any(map(is_encrypted, settings)) else ""
    found = []
    for setting in settings:
        if not is_encrypted(setting):
            found.append(setting)
            continue
        try:
            found.append(msgspec.structs.replace(setting, value=decrypt(setting.value, passphrase)))
        except UnreadableError as error:
            problems.append(f"{setting.origin}: {setting.key} {error}")
    return found


def is_encrypted(setting: Setting) -> bool:
    """Return whether the value of a setting is encrypted."""
    return setting.value.startswith(PREFIX)


def passphrase_of(values: Mapping[str, Setting], problems: list[str]) -> str:
    """Return the passphrase among settings by their keys, or that of the file that they name; '' if there is none."""
    if given := values.get(PASSPHRASE):
        return given.value
    named = values.get(PASSPHRASE_FILE)
    if named is None:
        return ""
    try:
        return read_named(home_expanded(named.value)).decode().strip()
    except (OSError, ValueError) as error:  # which text that is no UTF-8 is, too
        problems.append(f"{named.origin}: {PASSPHRASE_FILE}: cannot read {named.value}: {error}")
        return ""


def encrypt(value: str, passphrase: str, scheme: Scheme = WRITTEN) -> str:
    """Encrypt a value; returns it with the prefix."""
    octets = value.encode()
    term = _BINARY_HEAD.pack(_VERSION, _BINARY, len(octets)) + octets
    padding = _BLOCK - len(term) % _BLOCK
    salt, vector = os.urandom(_SALT), os.urandom(_BLOCK)
    encryptor = _cipher(passphrase, salt, vector, scheme).encryptor()
    ciphertext = encryptor.update(term + bytes([padding]) * padding) + encryptor.finalize()
    return PREFIX + base64.b64encode(salt + vector + ciphertext).decode()


def decrypt(value: str, passphrase: str) -> str:
    """Decrypt a value with the prefix; raises UnreadableError for another passphrase, or what was not encrypted so."""
    try:
        octets = base64.b64decode(value.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise UnreadableError("is not base64 after 'encrypted:'") from None
    salt, vector, ciphertext = octets[:_SALT], octets[_SALT : _SALT + _BLOCK], octets[_SALT + _BLOCK :]
    if not ciphertext or len(ciphertext) % _BLOCK:
        raise UnreadableError("has a wrong length after 'encrypted:'")
    if not passphrase:
        raise UnreadableError("is encrypted, but config_entry_decoder.passphrase is not set")
    for scheme in READ:
        decryptor = _cipher(passphrase, salt, vector, scheme).decryptor()
        text = _text(decryptor.update(ciphertext) + decryptor.finalize())
        if text is not None:
            return text
    raise UnreadableError("cannot be decrypted: config_entry_decoder.passphrase does not fit")


def _cipher(passphrase: str, salt: bytes, vector: bytes, scheme: Scheme) -> "Cipher[modes.CBC]":
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - rarely needed

    key = hashlib.pbkdf2_hmac(scheme.digest, passphrase.encode(), salt, scheme.iterations, scheme.key_size)
    return Cipher(algorithms.AES(key), modes.CBC(vector))


def _text(padded: bytes) -> str | None:
    """Return the text of a padded term; None if it is none."""
    padding = padded[-1]
    if not 1 <= padding <= _BLOCK or padded[-padding:] != bytes([padding]) * padding:
        return None
    term = padded[:-padding]
    for head, kind in ((_BINARY_HEAD, _BINARY), (_STRING_HEAD, _STRING)):
        if len(term) >= head.size and term[:2] == bytes([_VERSION, kind]):
            octets = term[head.size :]
            if head.unpack_from(term)[2] == len(octets):
                try:
                    return octets.decode()
                except UnicodeDecodeError:
                    return None
    return None
