"""Scopes of OAuth 2 tokens: permissions and tags, with RabbitMQ's forms (rabbit_oauth2_scope). Pure.

A scope is `read:VHOST/NAME`, `write:...` or `configure:...`, with `/ROUTING_KEY` at the end or not, or `tag:TAG`. Each
part may have `*` anywhere, which matches any text, and is percent-encoded. Others mean nothing here.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from leveret.broker.auth.rights import Question
from leveret.broker.auth.users import DEFAULT_EXCHANGE

MOST: Final = 200
"""Maximum number of scopes of a token, with those that aliases stand for."""
_KINDS: Final = frozenset({"configure", "write", "read"})
_TAG: Final = "tag:"
_LEAST_PARTS, _MOST_PARTS = 2, 3

Pattern = tuple[str, ...]
"""The texts between the asterisks of a part of a scope."""


def matches(pattern: Pattern, text: str) -> bool:
    """Return whether a text is what a pattern describes, in time linear in the length of the text for each asterisk."""
    first, *rest = pattern
    if not rest:
        return text == first
    if not text.startswith(first) or len(text) < len(first) + len(rest[-1]) or not text.endswith(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for part in rest[:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Scopes:
    """The scopes of one token.

    Args:
        texts: the scopes, without the prefix of the broker.

    Attributes:
        tags: the tags that they give.

    """

    __slots__ = ("_patterns", "tags")

    def __init__(self, texts: Iterable[str]) -> None:
        patterns = []
        tags = []
        for text in texts:
            if text.startswith(_TAG):
                tags.append(text.removeprefix(_TAG))
                continue
            kind, _, rest = text.partition(":")
            parts = rest.split("/")
            if kind in _KINDS and _LEAST_PARTS <= len(parts) <= _MOST_PARTS:
                compiled = [tuple(unquote(each) for each in part.split("*")) for part in parts]
                key = compiled[2] if len(parts) == _MOST_PARTS else ("", "")
                patterns.append((kind, compiled[0], compiled[1], key))
        self._patterns = tuple(patterns)
        self.tags = tuple(dict.fromkeys(tag for tag in tags if tag))

    def may_access(self, vhost: str) -> bool:
        """Return whether any scope is for this vhost."""
        return any(matches(each, vhost) for _, each, _, _ in self._patterns)

    def may(self, vhost: str, question: Question) -> bool:
        """Return whether a scope gives a permission in a vhost."""
        kind, _, name, key = question
        return any(
            kind == granted
            and matches(in_vhost, vhost)
            and matches(named, name or DEFAULT_EXCHANGE)
            and (key is None or matches(with_key, key))
            for granted, in_vhost, named, with_key in self._patterns
        )


def scopes_of(
    claims: Mapping[str, Any],
    *,
    resource: str,
    prefix: str,
    additional: Iterable[str] = (),
    aliases: Mapping[str, tuple[str, ...]],
) -> Scopes:
    """Return the scopes of a token.

    Args:
        claims: its verified claims.
        resource: the name of the broker among the resources of the issuer.
        prefix: what the scopes for the broker begin with.
        additional: names of further claims with scopes, with dots for claims inside of others.
        aliases: the scopes that other scopes stand for.

    Raises:
        ValueError: there are more than `MOST`.

    """
    found = list(_texts(claims.get("scope"), resource))
    for path in additional:
        value: Any = claims.get(path)
        if value is None:
            value = claims
            for name in path.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
        found += _texts(value, resource)
    found += [each for scope in found for each in aliases.get(scope, ())]
    if len(found) > MOST:
        raise ValueError(f"more than {MOST} scopes")
    return Scopes([scope.removeprefix(prefix) for scope in found if scope.startswith(prefix)])


def _texts(value: Any, resource: str) -> list[str]:
    """Return the scopes in a claim: a text with spaces between them, a list, or either of them by resource."""
    if isinstance(value, Mapping):
        value = value.get(resource)
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [each for text in value if isinstance(text, str) for each in text.split()]
    return []
