"""Log lines and audit entries about requests that change something, or look at messages. Pure."""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.administration.json_parts import unmarked
from leveret.broker.auth.login_throttle import shown
from leveret.broker.auth.users import User
from leveret.broker.http.call import SAFE, Call
from leveret.broker.http.errors import ApiError
from leveret.broker.http.route import Operation
from leveret.broker.process.audit_log import MASK, bounded, hidden, without

log = logging.getLogger("leveret.management")

LARGEST: Final = 64 * 1024  # octets of a body that is read again for its entry; nothing of a larger one is
_SHOWN: Final = frozenset({
    "ackmode", "apply-to", "arguments", "auto_delete", "component", "configure", "count", "default_queue_type",
    "definition", "description", "destination", "destination_type", "durable", "exchange", "internal", "max",
    "pattern", "priority", "protected_from_deletion", "queue", "read", "requeue", "retention", "routing_key", "source",
    "tags", "tracing", "type", "users", "value", "vhost", "where", "write",
})  # fmt: skip
"""Keys of bodies whose values are recorded. Others may be payloads, passwords or hashes."""
_NOTED: Final = ("password", "password_hash")  # keys of bodies of which only is recorded that they were there
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_NAMES: Final = (
    "name", "policy", "user", "queue", "exchange", "connection", "channel", "limit", "transfer", "node", "destination",
)  # fmt: skip
"""Names in paths that name the object, the first that there is."""
_SERVER_ERROR: Final = 500
_ERROR: Final = 400
_LOGINS: Final = frozenset({"/api/login", "/api/leveret/oauth"})  # paths at which users log in to the page


def audited_event(path: str, method: str, operation: Operation) -> str:
    """Return the name of the event of a request: the fixed words of its route's path, and the method; '' for none."""
    if method in SAFE and not operation.is_audited:
        return ""
    words = [word for word in path.split("/") if not word.startswith("{")]
    return ".".join([*words, method.lower()])


def check_writable(broker: AdministeredBroker, method: str) -> None:
    """Refuse a change while the audit log cannot be written, if it must be; raises ApiError."""
    audit = broker.audit
    if audit.is_failing and audit.is_required and method not in SAFE:
        raise ApiError(
            503, "audit_log_unavailable", "the audit log cannot be written: nothing is changed meanwhile"
        )


def log_request(method: str, path: str, peer: str, actor: User | None, status: int) -> None:
    """Log a request that changes something, without its body, which may have passwords in it."""
    if actor and path in _LOGINS and status < _ERROR:
        log.info(
            "user '%s' logged in to the page from %s", shown(actor.name), peer or "the operator's socket"
        )
        return
    whom = f"user '{shown(actor.name)}' from {peer}" if actor else "the operator"
    if not actor and peer:
        whom = f"a client without login from {peer}"
    log.info("%s: %s %s: %d", whom, method, shown(path), status)


def audit_login(broker: AdministeredBroker, name: str, peer: str, reason: str = "", *, now: float) -> None:
    """Record a login of an HTTP request; successful ones once a minute, as each request has one.

    `reason` is that of a refusal; '' if the login has succeeded.
    """
    facts = {"actor": name, "peer": peer, "protocol": "http", "mechanism": "basic"}
    if reason:
        broker.audit.record("login", outcome="refused", reason=reason, **facts)
    else:
        broker.audit.record_repeatable("login", now, **facts)


def audit_request(
    broker: AdministeredBroker,
    event: str,
    names: Mapping[str, str],
    actor: User | None,
    peer: str,
    status: int,
    content: bytes = b"",
    reason: str = "",
    states: tuple[Any, Any] = (None, None),
) -> None:
    """Record a request that was to change something.

    The actor None, with a peer of '', is the operator. A status of 0 is that of a request that was broken off, so that
    it may have changed something or not. `reason` is that of a refusal, `states` are those of the object before and
    after the change (`state_of`).
    """
    audit = broker.audit
    if not audit.is_on:
        return
    outcome = "ok" if 0 < status < _ERROR else "refused" if _ERROR <= status < _SERVER_ERROR else "failed"
    name = next((names[key] for key in _NAMES if key in names), "")
    rest = {key: value for key, value in names.items() if value != name and key != "vhost"}
    audit.record(
        event,
        outcome=outcome,
        actor="" if actor is None else actor.name,
        peer=peer,
        vhost=names.get("vhost", ""),
        name=name,
        reason=_shown(reason, content, name) if reason else "",
        before=states[0],
        after=states[1],
        **rest,
        status=status or None,
        body=_body(content, name),
    )


def state_of(operation: Operation, call: Call, event: str) -> Any:
    """Return the state that an operation changes, as it may be recorded; None if it is not recorded, or not there."""
    if not event or operation.state is None or not call.broker.audit.is_on:
        return None
    state = operation.state(call)
    return None if state is None else bounded("", state)


def _shown(reason: str, content: bytes, name: str) -> str:
    """Return the reason of a refusal without the secrets of the body that it quotes."""
    # If the body is not read, all that the reason quotes may be one. The name of a parameter may tell that its value
    # is.
    if not content:
        return reason
    body = _decoded(content)
    if body is None:
        return _QUOTED.sub(MASK, reason)
    try:
        return without(reason, [*hidden("", body), *hidden(name, body.get("value"))])
    except RecursionError:
        return _QUOTED.sub(MASK, reason)


def _decoded(content: bytes) -> dict[str, Any] | None:
    """Return a body that is an object of JSON and not too large."""
    if not content or len(content) > LARGEST:
        return None
    try:
        body = msgspec.json.decode(unmarked(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _body(content: bytes, name: str) -> dict[str, Any] | None:
    """Return the part of a body that may be recorded; the name of a parameter may tell that its value is secret."""
    body = _decoded(content)
    if body is None:
        return None
    noted = {key: MASK for key in _NOTED if body.get(key)}
    shown_values = {key: value for key, value in body.items() if key in _SHOWN}
    if "value" in shown_values:
        shown_values["value"] = bounded(name, shown_values["value"])
    return shown_values | noted
