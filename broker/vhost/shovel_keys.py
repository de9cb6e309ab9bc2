"""Keys of a shovel's definition: their validators, with the texts of RabbitMQ 3.13 (rabbit_shovel_parameters).

Intentional differences: only AMQP 0-9-1 is supported, so `amqp10` is refused; keys and values of `src-queue-args` and
`dest-queue-args` are checked by the broker that declares the queue; errors quote URIs without logins and passwords.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leveret.broker.amqp.properties import PROPERTIES
from leveret.broker.amqp.tables import encode_table, typed
from leveret.broker.client.uri import Endpoint, MalformedUriError, endpoint_of, refused_uri
from leveret.broker.vhost.parameter_checks import Check, check_keys, check_number, refuse, term_text

PROTOCOL = "amqp091"
ACK_MODES = ("no-ack", "on-publish", "on-confirm")
NEVER, QUEUE_LENGTH = "never", "queue-length"
MOST_NAME = 255
URIS = ("src-uri", "dest-uri")
_MOST = {"delivery_mode": 255, "priority": 255, "timestamp": 2**64 - 1}


def _text(key: str, value: Any) -> Iterable[str]:
    if not isinstance(value, str):
        yield f"{key} should be binary, actually was {term_text(value)}"
    elif not _is_unicode(value):
        yield f"{key} should be UTF-8"


def _is_unicode(text: str) -> bool:
    """Return whether a text can be sent: JSON may contain halves of surrogate pairs."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _short_text(key: str, value: Any) -> Iterable[str]:
    yield from _text(key, value)
    if isinstance(value, str) and (size := len(value.encode("utf-8", "surrogatepass"))) > MOST_NAME:
        yield f"{key} should be less than 255 bytes, actually was {size}"


def _boolean(key: str, value: Any) -> Iterable[str]:
    if not isinstance(value, bool):
        yield f"{key} should be boolean, actually was {term_text(value)}"


def _one_of(*allowed: str) -> Check:
    options = f"[{','.join(map(term_text, allowed))}]"

    def check(key: str, value: Any) -> Iterable[str]:
        if not isinstance(value, str):
            yield f"{key} should be binary, actually was {term_text(value)}"
        elif value not in allowed:
            yield f"{key} should be one of {options}, actually was {term_text(value)}"

    return check


def _protocol(key: str, value: Any) -> Iterable[str]:
    if value == "amqp10":
        yield f"{key} amqp10 is not supported: only {PROTOCOL} is"
        return
    yield from _one_of("amqp10", PROTOCOL)(key, value)


def _at_most(most: int) -> Check:
    """Accept an integer that the protocol can carry, from 0 on: RabbitMQ's shovel would fail later."""

    def check(key: str, value: Any) -> Iterable[str]:
        yield from check_number(key, value)
        if isinstance(value, float) or (isinstance(value, int) and not 0 <= value <= most):
            yield f"{key} should be an integer from 0 to {most}, actually was {term_text(value)}"

    return check


def _delay(key: str, value: Any) -> Iterable[str]:
    yield from check_number(key, value)
    if isinstance(value, int | float) and value < 0:
        yield f"{key} should be a number greater than or equal to 0, actually was {term_text(value)}"


def _uri(key: str, value: Any) -> Iterable[str]:
    if isinstance(value, str):
        if not _is_unicode(value):
            yield f"{key} should be UTF-8"
            return
        try:
            endpoint_of(value)
        except MalformedUriError as fault:
            yield f'"{refused_uri(value)}" not a valid URI: {fault}'
    elif isinstance(value, list):
        for each in value:
            if faults := list(_uri(key, each)):
                yield faults[0]
                return
        if not value:
            yield f"{key} should have at least one URI"
    else:
        yield f"{key} should be list, actually was {term_text(value)}"


def _delete_after(key: str, value: Any) -> Iterable[str]:
    if value in {NEVER, QUEUE_LENGTH} if isinstance(value, str) else type(value) is int and value >= 0:
        return
    yield (
        f'{key} should be a number greater than or equal to 0, "never" or "queue-length", '
        f"actually was {term_text(value)}"
    )


def _object(key: str, value: Any) -> Iterable[str]:
    """Accept a table of arguments; an empty list is one, as in Erlang."""
    if not isinstance(value, Mapping) and value != []:
        yield f"{key} not a list {term_text(value)}"
        return
    try:
        encode_table(typed(value or {}))
    except (ValueError, TypeError) as error:
        yield f"{key} cannot be sent: {error}"


_PROPERTY_KEYS: Mapping[str, tuple[Check, bool]] = {
    name: (_short_text if kind is str else _at_most(_MOST[name]), False)
    for name, kind in PROPERTIES.items()
    if kind is not dict
}


def _properties(key: str, value: Any) -> Iterable[str]:
    return check_keys(key, _PROPERTY_KEYS, value)


def _optional(check: Check, *keys: str) -> dict[str, tuple[Check, bool]]:
    return dict.fromkeys(keys, (check, False))


_KEYS: Mapping[str, tuple[Check, bool]] = {
    **_optional(_delay, "reconnect-delay"),
    **_optional(_one_of(*ACK_MODES), "ack-mode"),
    **_optional(_protocol, "src-protocol", "dest-protocol"),
    "src-uri": (_uri, True),
    **_optional(_short_text, "src-exchange", "src-exchange-key", "src-queue"),
    **_optional(_object, "src-queue-args", "src-consumer-args"),
    **_optional(_at_most(65_535), "prefetch-count", "src-prefetch-count"),
    **_optional(_delete_after, "delete-after", "src-delete-after"),
    "dest-uri": (_uri, True),
    **_optional(_short_text, "dest-exchange", "dest-exchange-key", "dest-queue"),
    **_optional(_object, "dest-queue-args"),
    **_optional(_boolean, "add-forward-headers", "add-timestamp-header"),
    **_optional(_boolean, "dest-add-forward-headers", "dest-add-timestamp-header"),
    **_optional(_properties, "publish-properties", "dest-publish-properties"),
}


def check_shovel(name: str, value: Any) -> None:
    """Raise ParameterError for a shovel that cannot be set."""
    given = value if isinstance(value, Mapping) else {}
    faults = []
    ends = [key for key in ("src-exchange", "src-queue") if key in given]
    if not ends:
        faults.append("Must specify 'src-exchange' or 'src-queue'")
    elif len(ends) > 1:
        faults.append("Cannot specify 'src-exchange' and 'src-queue'")
    after = given.get("src-delete-after", given.get("delete-after"))
    if type(after) is int and given.get("ack-mode") == "no-ack":
        faults.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    if "dest-exchange" in given and "dest-queue" in given:
        faults.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    if given.get("dest-queue") == "":  # RabbitMQ declares a queue of a name of its own, and publishes to none
        faults.append("dest-queue must not be empty")
    refuse([*faults, *check_keys(name, _KEYS, value)])


def check_local_access(value: Any, user: str, may_access: Callable[[str], bool]) -> None:
    """Raise ParameterError if a valid shovel uses a vhost of this broker to which its user may not connect."""
    for endpoint in _endpoints(value):
        if endpoint.address is None and not may_access(endpoint.vhost):
            refuse([f'user "{user}" may not connect to vhost "{endpoint.vhost}"'])


def check_logins(value: Any, user: str, *, is_foreign: bool) -> None:
    """Raise ParameterError if a valid shovel of a user without the tag administrator uses rights that are not theirs.

    `is_foreign`: the user is one of another authentication backend, whose rights cannot be checked later.
    """
    for endpoint in _endpoints(value):
        if endpoint.address is not None or endpoint.password is not None:
            continue
        if endpoint.user not in {None, user}:
            refuse([f'user "{user}" needs the password of user "{endpoint.user}" in the URI'])
        if is_foreign:
            refuse([f'user "{user}" is not in the internal database: the URI needs a user and a password'])


def check_certificates(value: Any, user: str, directory: str) -> None:
    """Raise ParameterError if a valid shovel names certificate files beyond a directory ('' for none)."""
    for endpoint in _endpoints(value):
        tls = endpoint.options.tls
        for file in () if tls is None else tls.files:
            if not directory:
                refuse([f'user "{user}" may not name certificate files: shovel.certificate_dir is not set'])
            if not file.is_relative_to(directory) or ".." in file.parts:
                refuse(
                    [f'user "{user}" may name certificate files in {directory} only (shovel.certificate_dir)']
                )


def _endpoints(value: Any) -> list[Endpoint]:
    return [endpoint_of(uri) for key in URIS for uri in uris(value, key)]


def uris(value: Mapping[str, Any], key: str) -> list[str]:
    """Return the URIs of one side."""
    given = value[key]
    return [given] if isinstance(given, str) else list(given)


def shown_without_secrets(value: Any) -> Any:
    """Return a shovel's definition for users who may not see passwords: its URIs have no login and no query."""
    if not isinstance(value, Mapping):
        return value
    shown = dict(value)
    for key in URIS:
        if key in value:
            hidden = [endpoint_of(uri).shown for uri in uris(value, key)]
            shown[key] = hidden[0] if isinstance(value[key], str) else hidden
    return shown
