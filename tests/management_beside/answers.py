"""Answers of a broker to requests, and the differences of two answers."""

import base64
import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from management_beside.asked import Asked
from management_beside.measured import common, error_body, is_measured, is_of_parts, is_only_theirs

MOST_SECONDS = 20.0
HEADERS = ("www-authenticate", "location", "content-type", "content-disposition", "allow")
"""The headers that are compared."""


@dataclass(frozen=True, slots=True)
class Target:
    """A broker to ask.

    Attributes:
        port: of its management API, on 127.0.0.1.
        node: its node name, `NODE` in requests and answers.
        amqp_port: `PORT` in requests, and 5672 in answers.

    """

    port: int
    node: str
    amqp_port: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its status, the headers that are compared, and its body, JSON or text."""

    status: int
    headers: dict[str, str]
    body: Any


def ask(target: Target, asked: Asked) -> Answer:
    """Send a request; names of the node and its port are replaced."""
    headers = {}
    if asked.login:
        headers["authorization"] = (
            "Basic " + base64.b64encode(f"{asked.login}:{asked.login}".encode()).decode()
        )
    if asked.method in {"PUT", "POST"}:
        is_form = asked.path == "login"
        headers["content-type"] = "application/x-www-form-urlencoded" if is_form else "application/json"
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=MOST_SECONDS)
    try:
        connection.request(
            asked.method, "/api/" + _filled(asked.path, target), _filled(asked.body, target), headers
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        found = {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()
    text = re.sub(
        rf"{target.node.partition('@')[0]}@[\w.-]+", "NODE", text
    )  # the cluster is named by the whole host
    text = re.sub(r"rabbitmq-cluster-id-[\w-]{22}", "CLUSTER", text)
    for port, usual in ((target.amqp_port, "5672"), (target.port, "15672")):
        text = text.replace(f"{port}", usual)
    try:
        content = json.loads(text)
    except ValueError:
        content = text
    return Answer(answer.status, {name: found[name] for name in HEADERS if name in found}, content)


def _filled(text: str | None, target: Target) -> str | None:
    return text and text.replace("NODE", target.node).replace("PORT", str(target.amqp_port))


def differences(theirs: Answer, ours: Answer) -> Iterator[str]:
    """Yield in words how our answer differs: status, headers, and body but for measured.py."""
    if theirs.status != ours.status:
        yield f"status {theirs.status} there, {ours.status} here: {_short(theirs.body)} | {_short(ours.body)}"
        return
    for name in HEADERS:
        if theirs.headers.get(name) != ours.headers.get(name):
            yield f"{name} {theirs.headers.get(name)} there, {ours.headers.get(name)} here"
    if theirs.status >= http.client.BAD_REQUEST:
        one, other = (error_body(each.body) for each in (theirs, ours))
        if one != other:
            yield f"{_short(one)} there, {_short(other)} here"
    else:
        yield from _of_values(theirs.body, ours.body, "")


def _of_values(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    """Compare values, or their types where they are measured; keys that only we have are those of later versions."""
    if _kind(theirs) != _kind(ours):
        yield f"{path or 'the body'} is {_short(theirs)} there, {_short(ours)} here"
    elif isinstance(theirs, dict):
        for key, value in theirs.items():
            inner = f"{path}.{key}"
            if is_only_theirs(inner):
                continue
            if key not in ours:
                yield f"{inner} ({_short(value)}) is missing here"
            else:
                yield from _of_values(value, ours[key], inner)
    elif isinstance(theirs, list):
        if is_of_parts(path, theirs):
            theirs, ours = common(theirs, ours)
        theirs, ours = _in_order(theirs), _in_order(ours)
        if len(theirs) != len(ours):
            yield f"{path or 'the list'} has {len(theirs)} items there, {len(ours)} here: {_short(ours)}"
        found = {text for pair in zip(theirs, ours, strict=False) for text in _of_values(*pair, f"{path}[]")}
        yield from sorted(found)
    elif theirs != ours and not is_measured(path, theirs, ours):
        yield f"{path or 'the body'} is {_short(theirs)} there, {_short(ours)} here"


def _in_order(items: list[Any]) -> list[Any]:
    """Return items in the order of what identifies them; a list of others unchanged."""
    keys = ("vhost", "component", "name", "user", "exchange", "source", "destination", "properties_key")
    if not all(isinstance(item, dict) for item in items):
        return items
    return sorted(items, key=lambda item: [str(item.get(key, "")) for key in keys])


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(type(value))
    return "number" if isinstance(value, int | float) else type(value).__name__


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 400 else f"{text[:400]}..."
