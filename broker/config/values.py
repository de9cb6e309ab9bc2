"""Parsing of configuration text: the lines of rabbitmq.conf, and their values.

The syntax is RabbitMQ's: ``key = value`` lines, ``#`` starts a comment anywhere outside single quotes, a value in
single quotes is taken literally, one in three of them may have several lines, and ``$(NAME)`` outside them is replaced
by that environment variable.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from leveret.broker.auth.backends.settings import MODULES
from leveret.broker.config_key import Key
from leveret.broker.process.logs import When
from leveret.broker.process.named_files import read_named

_LINE = re.compile(r"\s*(?P<key>[^\s=#][^\s=]*)\s*=\s*(?P<value>.*?)\s*")
_MULTILINE = re.compile(r"\s*(?P<key>[^\s=#][^\s=]*)\s*=\s*'''(?P<value>.*)", re.DOTALL)
_QUOTED = re.compile(r"'(?P<text>[^']*)'\s*(?:#.*)?")
_REFERENCE = re.compile(r"\$\((?P<name>[^)]*)\)")
_NUMBER_WITH_UNIT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)")
_PATTERN = re.compile(r"[*?[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
LOG_NAME: Final = re.compile(r"(?!pg_)[a-z][a-z0-9_]{0,39}")
LOG_NAME_RULE: Final = (
    "must be at most 40 lower-case letters, digits and _ that begin with a letter, not with pg_"
)
_QUOTES: Final = "'''"
MOST_PORT: Final = 65535
DEFAULT_PORT: Final = 5672
_TLS_SCHEME: Final = "amqps://"

# RabbitMQ reads most sizes with KB = 1024, but its memory and disk limits with K = KB = 1000 and Ki = KiB = 1024.
_SIZE_UNITS: Final = {"": 1, "b": 1} | {
    unit: 1024**power
    for power, letter in enumerate("kmgtp", 1)
    for unit in (letter, f"{letter}b", f"{letter}i", f"{letter}ib")
}
_AMOUNT_UNITS: Final = _SIZE_UNITS | {
    unit: 1000**power for power, letter in enumerate("kmgtp", 1) for unit in (letter, f"{letter}b")
}
_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class Listener(msgspec.Struct, frozen=True):
    """An address to listen on. An empty host means all interfaces, port 0 a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if host else str(self.port)


class BrokerAddress(Listener, frozen=True):
    """The address of another broker."""

    is_tls: bool = False

    def __str__(self) -> str:
        return f"{_TLS_SCHEME if self.is_tls else ''}{super().__str__()}"


class Setting(msgspec.Struct, frozen=True):
    """One ``key = value`` as written; ``origin`` is its source, for messages, ``file`` the file, if it is in one.

    ``erlang`` is its name in the form of Erlang, if it is written so: RabbitMQ takes any there, known or not.
    """

    key: str
    value: str
    origin: str
    file: Path | None = None
    erlang: str = ""


def parse_line(line: str, origin: str, environ: Mapping[str, str]) -> Setting | None:
    """Read one line of a configuration file; None for a line that sets nothing.

    Raises ValueError with the reason if it is neither a setting nor blank nor a comment.
    """
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return None
    if (several := _MULTILINE.fullmatch(stripped)) is not None:
        value, quotes, rest = several["value"].partition(_QUOTES)
        if not quotes or rest.partition("#")[0].strip():
            raise ValueError(f"the value of {several['key']} must end with {_QUOTES}")
        return Setting(several["key"].replace("\\.", "."), value.strip(), origin)
    match = _LINE.fullmatch(stripped)
    if match is None:
        raise ValueError("expected 'key = value'")  # without the text, which may contain a password
    value = match["value"]
    if (quoted := _QUOTED.fullmatch(value)) is not None:
        value = quoted["text"]
    else:
        value = _interpolate(value.partition("#")[0].strip(), environ)
    if not value and quoted is None:
        raise ValueError(f"{match['key']} has no value")
    return Setting(match["key"].replace("\\.", "."), value, origin)


def line_of(setting: Setting) -> str:
    """Return a setting as a line of a file, or as several, as its value has."""
    value = setting.value
    if "\n" in value or "'" in value:
        value = f"{_QUOTES}{value}{_QUOTES}"
    elif not value or value != value.strip() or "#" in value or "$(" in value:
        value = f"'{value}'"
    return f"{setting.key} = {value}"


def _interpolate(value: str, environ: Mapping[str, str]) -> str:
    def variable(match: re.Match[str]) -> str:
        try:
            return environ[match["name"]]
        except KeyError:
            raise ValueError(f"environment variable {match['name']} is not set") from None

    return _REFERENCE.sub(variable, value)


def read_file(path: Path, environ: Mapping[str, str], problems: list[str]) -> Iterator[Setting]:
    """Yield the settings of ``path``, or of the files that it matches in lexical order.

    A directory matches its ``*.conf``. A path that does not exist and contains ``*``, ``?``, ``[0-9]`` or
    ``{this,that}`` is a pattern, which may match nothing, as in RabbitMQ's ``RABBITMQ_CONFIG_FILES``.

    Errors are added to ``problems``; the rest is still read, so that all of them are reported at once.
    """
    try:
        files = _files(path)
    except (OSError, ValueError, NotImplementedError) as error:
        problems.append(f"cannot read {path}: {error}")
        return
    for file in files:
        yield from _settings(file, environ, problems)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = set(path.glob("*.conf"))
    elif path.exists() or not _PATTERN.search(str(path)):
        return [path]
    else:
        start = Path(path.anchor)
        patterns = _alternatives(str(path.relative_to(start)))
        found = {file for pattern in patterns for file in start.glob(pattern)}
    return sorted([file for file in found if file.is_file()], key=str)


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns without ``{this,that}`` that a pattern with it stands for."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [text for word in braces[1].split(",") for text in _alternatives(before + word + after)]


def read_text(path: Path, problems: list[str], *, may_miss: bool = False) -> str | None:
    """Return the text of a file; None if it cannot be read, which is added to ``problems`` unless it ``may_miss``."""
    try:
        return read_named(path, is_typed=True).decode()
    except OSError as error:
        if not (may_miss and isinstance(error, FileNotFoundError)):
            problems.append(f"cannot read {path}: {error.strerror or error}")
    except UnicodeDecodeError:
        problems.append(f"cannot read {path}: not UTF-8 text")
    return None


def _settings(path: Path, environ: Mapping[str, str], problems: list[str]) -> Iterator[Setting]:
    text = read_text(path, problems) or ""
    for number, line in _logical_lines(text):
        origin = f"{path}:{number}"
        try:
            setting = parse_line(line, origin, environ)
        except ValueError as error:
            problems.append(f"{origin}: {error}")
        else:
            if setting is not None:
                yield msgspec.structs.replace(setting, file=path)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line; one whose value begins with three quotes goes on until the next three."""
    opened, begun = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if opened:
            begun += f"\n{line}"
        elif _MULTILINE.fullmatch(line):
            opened, begun = number, line
        else:
            yield number, line
            continue
        if begun.count(_QUOTES) > 1:
            yield opened, begun
            opened = 0
    if opened:
        yield opened, begun


def _within(number: float, key: Key) -> None:
    if key.low is not None and number < key.low:
        raise ValueError(f"must be at least {key.low}")
    if key.high is not None and number > key.high:
        raise ValueError(f"must be at most {key.high}")


def _bool(text: str, _key: Key) -> bool:
    if text not in {"true", "false"}:  # the only values that RabbitMQ accepts
        raise ValueError("must be true or false")
    return text == "true"


def _int(text: str, key: Key) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None
    _within(number, key)
    return number


def _limit(text: str, key: Key) -> int | None:
    """Parse an integer, or ``infinity`` (or the ``-1`` that some keys accept) as None."""
    return None if text == "infinity" or (key.low == -1 and text == "-1") else _int(text, key)


def _octets(text: str, key: Key, units: Mapping[str, int] = _SIZE_UNITS) -> int:
    match = _NUMBER_WITH_UNIT.fullmatch(text)
    if match is None or (factor := units.get(match["unit"].lower())) is None:
        raise ValueError("must be a size such as 131072, 128KiB or 64MB")
    size = float(match["number"]) * factor if "." in match["number"] else int(match["number"]) * factor
    if size != int(size):
        raise ValueError("must be a whole number of bytes")
    _within(size, key)
    return int(size)


def parse_amount(text: str, key: Key) -> int:
    """Parse a number of bytes: ``131072``, ``128KiB`` or ``128Ki``, powers of 1024, but ``64MB`` or ``64M``, of 1000.

    Raises ValueError: it is none, or not within the key's bounds.
    """
    return _octets(text, key, _AMOUNT_UNITS)


def _duration(text: str, key: Key) -> float:
    """Parse seconds: ``200ms``, ``5s``, ``1m``, ``1h``; a bare number is in the key's own unit."""
    match = _NUMBER_WITH_UNIT.fullmatch(text)
    unit = match["unit"] or key.unit if match is not None else ""
    if match is None or unit not in _DURATION_UNITS:
        raise ValueError("must be a duration such as 200ms, 5s, 1m or 1h")
    seconds = float(match["number"]) * _DURATION_UNITS[unit]
    _within(seconds, key)
    return seconds


def _seconds(text: str, key: Key) -> int:
    seconds = _duration(text, key)
    if seconds != int(seconds):
        raise ValueError("must be whole seconds")
    return int(seconds)


def _choice(text: str, key: Key) -> str:
    if text not in key.choices:
        wanted = key.choices[0] if len(key.choices) == 1 else f"one of {', '.join(key.choices)}"
        raise ValueError(f"must be {wanted}")
    return text


def home_expanded(text: str) -> Path:
    """Return a path, in which ``~`` is the home directory.

    Raises ValueError: the system does not know that: there is no HOME, as in containers, or no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("begins with the home directory of a user who has none") from None


def _listener(text: str, _key: Key | None = None) -> Listener:
    """Parse ``port``, ``host:port``, ``[ipv6]:port`` or, as RabbitMQ has it, ``ipv6:port``."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif (":" in host and not is_address(host)) or (not host and text.startswith(":")):
        raise ValueError("must be port, host:port or [ipv6]:port")
    if not (port.isascii() and port.isdigit() and int(port) <= MOST_PORT):
        raise ValueError(f"must be port, host:port or [ipv6]:port with a port from 0 to {MOST_PORT}")
    return Listener(host, int(port))


def _brokers(text: str, _key: Key) -> tuple[BrokerAddress, ...]:
    """Parse addresses of brokers, with commas between: ``host:port``, or ``amqps://host:port``."""
    return broker_addresses(text)


def broker_addresses(text: str) -> tuple[BrokerAddress, ...]:
    """Return the addresses in a text, at least one; raises ValueError with the reason."""
    found = []
    for each in map(str.strip, text.split(",")):
        address = _listener(each.removeprefix(_TLS_SCHEME))
        found.append(BrokerAddress(address.host, address.port, each.startswith(_TLS_SCHEME)))
    if not all(each.host and each.port for each in found):
        raise ValueError("must be host:port or amqps://host:port, several with commas between")
    if len({each.is_tls for each in found}) > 1:
        raise ValueError("must be amqps:// for all addresses or none: otherwise passwords would not be safe")
    return tuple(found)


def is_address(host: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _moment(text: str, _key: Key) -> str:
    if text:
        When.parsed(text)
    return text


def _fraction(text: str, key: Key) -> float:
    """Parse a number from 0 to 1, or to the key's bound."""
    highest = key.high or 1
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= highest:
        raise ValueError(f"must be a number from 0 to {highest}")
    return number


def _backend(text: str, _key: Key) -> str:
    if text not in MODULES:
        raise ValueError("must be internal, http, ldap, oauth2 or cache")
    return MODULES[text]


def _address(text: str, _key: Key) -> str:
    parts = urlsplit(text)  # raises ValueError, too
    is_whole = parts.hostname and not parts.fragment and text.split() == [text]
    if parts.scheme not in {"http", "https"} or not is_whole:
        raise ValueError("must be an address such as https://host/path")
    return text


PARSERS: Final[Mapping[str, Callable[[str, Key], object]]] = {
    "bool": _bool,
    "int": _int,
    "limit": _limit,
    "size": _octets,
    "amount": parse_amount,
    "duration": _duration,
    "seconds": _seconds,
    "string": lambda text, _key: text,
    "fraction": _fraction,
    "choice": _choice,
    "path": lambda text, _key: home_expanded(text),
    "file": lambda text, _key: None if text == "false" else home_expanded(text),
    "listener": _listener,
    "brokers": _brokers,
    "moment": _moment,
    "backend": _backend,
    "user": lambda text, _key: "" if text == "none" else text,
    "address": _address,
}
"""Parsers of values, by the kind of a key; each raises ValueError with what the value must be."""
