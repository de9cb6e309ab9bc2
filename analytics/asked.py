"""The request of a command, and its form on the socket of `leveret analyze --serve`. Pure."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from leveret.analytics.locations import Location, parse
from leveret.analytics.objective import Objective
from leveret.analytics.scope import Scope

PROGRAM: Final = "leveret analyze"
_CONF: Final = "--conf"
_LOGIN: Final = re.compile(r"(?<=://)[^/?#]*@")
"""The login in a URL."""
VERSION: Final = 4  # version of the form: a server of another one refuses the request


class RequestError(Exception):
    """Raised for a request that this version does not understand."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """The request of a command."""

    names: Sequence[str]  # names of jobs, or `all`
    directory: Location  # the input
    output: Location  # the output
    scope: Scope  # the part of the input
    objective: Objective  # the latency that users want
    master: str | None  # the Spark master; None for the default
    settings: Mapping[str, str]  # Spark settings
    follow: float | None  # the pause between rounds in seconds, or None
    source: str = ""  # the command as pages show it


def to_json(asked: Asked) -> dict[str, Any]:
    """Return a request as it is sent, with absolute paths: a server has another working directory."""
    return {
        "version": VERSION,
        "names": list(asked.names),
        "directory": str(asked.directory.resolve()),
        "output": str(asked.output.resolve()),
        "scope": dataclasses.asdict(asked.scope),
        "objective": dataclasses.asdict(asked.objective),
        "master": asked.master,
        "settings": dict(asked.settings),
        "source": asked.source,
    }


def from_json(sent: Any) -> Asked:
    """Return the request that was sent. Raises RequestError: it is of another version, or none."""
    if not isinstance(sent, dict) or sent.get("version") != VERSION:
        raise RequestError("the request is of another version of leveret analyze")
    try:
        return Asked(
            names=tuple(sent["names"]),
            directory=parse(sent["directory"]),
            output=parse(sent["output"]),
            scope=Scope(**sent["scope"]),
            objective=Objective(**sent["objective"]),
            master=sent["master"],
            settings=dict(sent["settings"]),
            follow=None,
            source=sent["source"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"the request is incomplete: {error!r}") from error


def command_line(words: Sequence[str]) -> str:
    """Return the command with these words, without the values of Spark's keys and the logins of URLs.

    Pages are shared, so they must not have what may be a password.
    """
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        begin = f"{_CONF}=" if word.startswith(f"{_CONF}=") else ""
        if begin or before == _CONF:
            key = word.removeprefix(begin).partition("=")[0]
            shown.append(f"{begin}{key}=...")
        else:
            shown.append(_LOGIN.sub("...@", word))
    return f"{PROGRAM} {shlex.join(shown)}"
