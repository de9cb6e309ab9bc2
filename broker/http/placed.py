"""Requests that a front, or a process of virtual hosts, refuses, because only the other one can answer them. Pure.

The front has the users, the rights, the limits and the names of the virtual hosts; a process has what is in them.
"""

from typing import Final

from leveret.broker.http.call import SAFE
from leveret.broker.http.errors import ApiError

_OF_NODE: Final = frozenset({
    "users", "permissions", "topic-permissions", "vhosts", "vhost-limits", "user-limits", "global-parameters",
    "cluster-name",
})  # fmt: skip
"""First words of paths of what the front has."""
_OF_FRONT: Final = _OF_NODE | {"whoami", "version", "auth", "login", "logout"}
_MORE_OF_FRONT: Final = frozenset({"leveret/stop", "leveret/authenticate"})
_WHOLE: Final = frozenset(
    {"definitions", "all-configuration", "leveret/definitions", "reset", "reset/{node}"}
)
"""Paths that would change users, too."""


def check_placed(place: str, path: str, method: str) -> None:
    """Refuse a request that another process has to answer; raises ApiError.

    `place` is that of the broker (`AdministeredBroker.place`), `path` that of the route.
    """
    first = path.partition("/")[0]
    if place == "front":
        if first not in _OF_FRONT and path not in _MORE_OF_FRONT:
            raise _refused("queues and all else in virtual hosts is in their processes: ask one of these, whose data "
                           "directory is processes/N in that of this broker")  # fmt: skip
    elif place == "process" and method not in SAFE and (first in _OF_NODE or path in _WHOLE):
        raise _refused("users, rights, limits and virtual hosts are changed in the front, whose data directory is two "
                       "levels above that of this process")  # fmt: skip


def _refused(text: str) -> ApiError:
    return ApiError(400, "bad_request", text)
