"""A request that both brokers are sent."""

from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request: method, path after `/api/`, body (JSON, or text that is sent as it is) and login.

    `login` is the name of a user, whose password is the same; '' for none.
    """

    method: str
    path: str
    body: Any = None
    login: str = "guest"
