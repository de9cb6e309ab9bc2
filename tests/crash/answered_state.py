"""Model of what a broker has, for changes by the management API, and a change of it.

The model is a dictionary: a tuple of a section and names, as ("queue", vhost, name), to the value; `found` makes one
from the definitions that a broker exports. Pure.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

Key = tuple[str, ...]
State = dict[Key, Any]


class Change(NamedTuple):
    """A request, and what it changes.

    Attributes:
        method, path, body: the request; the path begins after `/api/`.
        added: keys that it sets.
        removed: whether it removes a key.

    """

    method: str
    path: str
    body: Any = None
    added: Mapping[Key, Any] = {}
    removed: Callable[[Key], bool] = lambda _key: False

    def apply(self, state: State) -> None:
        for key in [key for key in state if self.removed(key)]:
            del state[key]
        state.update(self.added)


def path(*names: str) -> str:
    return "/".join(quote(name, safe="") for name in names)


def plain(value: Any) -> str:
    """Return a JSON value as text that is equal for equal values."""
    return json.dumps(value, sort_keys=True)


def found(
    document: Mapping[str, Any], queues: Sequence[Mapping[str, Any]], passwords: Mapping[str, str]
) -> State:
    """Return what a broker has as a model.

    Args:
        document: its definitions.
        queues: `vhost`, `name` and `messages` of its queues.
        passwords: by the names of users the passwords with which they can log in.

    """
    state: State = {}
    for user in document["users"]:
        limits = plain(user.get("limits") or {})
        state["user", user["name"]] = (
            plain(sorted(user["tags"])),
            passwords.get(user["name"], ""),
            limits,
        )
    for vhost in document["vhosts"]:
        state["vhost", vhost["name"]] = vhost["metadata"]["description"]
    state.update(_of_vhosts(document))
    for each in document["global_parameters"]:
        state["global", each["name"]] = plain(each["value"])
    for queue in queues:
        state["messages", queue["vhost"], queue["name"]] = queue["messages"]
    return state


def _of_vhosts(document: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    for each in document["permissions"]:
        given = tuple(each[name] for name in ("configure", "write", "read"))
        yield ("permission", each["vhost"], each["user"]), given
    for each in document["topic_permissions"]:
        yield ("topic", each["vhost"], each["user"], each["exchange"]), (each["write"], each["read"])
    for each in document["policies"]:
        shown = {name: each[name] for name in ("pattern", "definition", "priority", "apply-to")}
        yield ("policy", each["vhost"], each["name"]), plain(shown)
    for each in document["parameters"]:
        yield ("parameter", each["vhost"], each["component"], each["name"]), plain(each["value"])
    for each in document["queues"]:
        yield ("queue", each["vhost"], each["name"]), plain(each["arguments"])
    for each in document["exchanges"]:
        yield ("exchange", each["vhost"], each["name"]), each["type"]
    for each in document["bindings"]:
        names = (each["source"], each["destination_type"], each["destination"], each["routing_key"])
        yield ("binding", each["vhost"], *names, plain(each["arguments"])), True
