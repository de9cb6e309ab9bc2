"""Queries of the LDAP backend: RabbitMQ's language of rules about a directory, read, checked and answered. Pure.

Theory. A query is a term, such as `{in_group, "cn=${vhost}-users,ou=groups,dc=example,dc=com"}`. Variables are values
that clients choose, so they never become syntax: in the name of an entry (DN) they are escaped as the value of an
attribute, and in a regular expression they stand for their literal text. (`${user_dn}` is a whole DN, found by
the backend.) What depends on a variable that the question does not have, and on names that the directory refuses, is
undecided: the whole query is then refused, also below `not`.

Queries are terms of Erlang (`broker.erlang_terms`), the form in advanced.config, without numbers.

ldap3, an extra, is the client for Python that needs no compiler (docs/adr/0040); here it escapes special characters.
"""

import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from leveret.broker.auth.name_patterns import InvalidPatternError, Matcher, Patterns
from leveret.broker.erlang_terms import parsed
from leveret.exchanges.erlang_hash import Atom

Query = Any  # A checked term
Variables = Mapping[str, str]

VARIABLES: Final[Mapping[str, frozenset[str]]] = {  # the variables of each kind of query
    name: frozenset(("username", "user_dn", "ad_domain", "ad_user", *more))
    for name, more in {
        "tags": (),
        "vhost_access": ("vhost",),
        "resource_access": ("vhost", "resource", "name", "permission"),
        "topic_access": ("vhost", "resource", "name", "permission", "routing_key"),
    }.items()
}
MEMBER: Final = "member"
_USER: Final = "${user_dn}"
SCOPES: Final[Mapping[str, bool]] = {  # scopes of a search for groups; True if it goes below children
    "subtree": True,
    "single_level": False,
    "singlelevel": False,
    "one_level": False,
    "onelevel": False,
}
GROUPS: Final = 1000  # maximum number of groups that the search of one nested group looks at
PATTERNS: Final = 32  # most values of an attribute used as regular expressions: each may take megabytes
_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_ATTRIBUTE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*(;[a-zA-Z0-9-]+)*|\d+(\.\d+)+")
_IGNORED: Final = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x1806, 0x180F, 0x3164, 0xFFFC),
            *range(0x180B, 0x180E),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
"""Characters that are mapped to nothing (RFC 4518, 2.2) or shown as nothing, and are in no category C."""
_DIRECTORY: Final = frozenset({"exists", "in_group", "in_group_nested", "attribute"})


class UndecidedError(Exception):
    """A query cannot be decided about these values; access is refused. Not a fault of the directory."""


def is_plain(text: str) -> bool:
    """Return whether a directory takes a text for no other one, apart from upper and lower case (RFC 4518)."""
    return (
        bool(text)
        and text == text.strip()
        and "  " not in text
        and _IGNORED.isdisjoint(text)
        and not any(unicodedata.category(each)[0] in "CZ" for each in text if each != " ")
        and unicodedata.normalize("NFKC", text) == text
    )


def escaped_value(text: str) -> str:
    """Return a text as the value of an attribute in a DN; raises UndecidedError if it stands for others, too."""
    if not is_plain(text):
        raise UndecidedError("not a text that only one entry has")
    return escaped_in_name(text)


def query_of(kind: str, text: str) -> Query:
    """Return the query of a text; raises ValueError, whose message says why it is none.

    `kind` is a key of `VARIABLES`; `tags` is a list of pairs of a tag and a query.
    """
    term, variables = parsed(text), VARIABLES[kind]
    if kind != "tags":
        return _checked(term, variables)
    return [_checked_tag(each, variables) for each in (term if isinstance(term, list) else [term])]


def _checked_tag(term: Any, variables: frozenset[str]) -> Query:
    match term:
        case (str() as tag, query):
            return (str(tag), _checked(query, variables))
    raise ValueError("must be a list of tags with queries, as in [{management, {constant, true}}]")


def needs_directory(query: Query) -> bool:
    """Return whether a query asks the directory."""
    if isinstance(query, list | tuple):
        return (bool(query) and isinstance(query[0], Atom) and query[0] in _DIRECTORY) or any(
            map(needs_directory, query)
        )
    return False


def _checked(term: Any, variables: frozenset[str]) -> Query:  # noqa: C901, PLR0911, PLR0912 - a table of forms
    """Return a query whose form is right; raises ValueError."""
    match term:
        case (Atom("constant"), Atom("true" | "false")):
            pass
        case (Atom("exists"), str() as pattern):
            check_pattern(pattern, variables)
        case (Atom("in_group"), str() as pattern):
            return _checked((*term, MEMBER), variables)
        case (Atom("in_group"), str() as pattern, str() as attribute):
            check_pattern(pattern, variables)
            check_attribute(attribute)
        case (Atom("in_group_nested"), str() as pattern):
            return _checked((*term, MEMBER, Atom("subtree")), variables)
        case (Atom("in_group_nested"), str() as pattern, str() as attribute):
            return _checked((*term, Atom("subtree")), variables)
        case (Atom("in_group_nested"), str() as pattern, str() as attribute, Atom() as scope):
            check_pattern(pattern, variables)
            check_attribute(attribute)
            if scope not in SCOPES:
                raise ValueError("the scope of in_group_nested must be subtree or single_level")
        case (Atom("for"), list() as cases) if cases:
            return (term[0], [_checked_case(each, variables) for each in cases])
        case (Atom("not"), query):
            return (term[0], _checked(query, variables))
        case (Atom("and" | "or"), list() as queries) if queries:
            return (term[0], [_checked(each, variables) for each in queries])
        case (Atom("equals" | "match") as name, first, second):
            texts = (_checked_text(first, variables), _checked_text(second, variables))
            if name == "match" and texts[1][0] == "string":
                _regex(texts[1][1], dict.fromkeys(variables, "x"))
            return (name, *texts)
        case (Atom() as name, *_):
            raise ValueError(f"there is no query {name} of this form")
        case _:
            raise ValueError("a query is a tuple such as {constant, true}")
    return term


def _checked_case(term: Any, variables: frozenset[str]) -> Query:
    match term:
        case (str() as name, str() as value, query) if name in variables:
            return (str(name), str(value), _checked(query, variables))
        case (str() as name, str(), _):
            raise ValueError(f"for: this query has no variable {name}")
    raise ValueError("for needs tuples such as {permission, write, {constant, true}}")


def _checked_text(term: Any, variables: frozenset[str]) -> Query:
    match term:
        case (Atom("string"), str() as pattern) | (str() as pattern) if not isinstance(pattern, Atom):
            check_pattern(pattern, variables)
            return (Atom("string"), pattern)
        case (Atom("attribute"), str() as pattern, str() as attribute):
            check_pattern(pattern, variables)
            check_attribute(attribute)
            return term
    raise ValueError("equals and match compare strings, {string, ...} and {attribute, DN, NAME}")


def asks_nested(query: Query) -> bool:
    """Return whether a query looks for nested groups."""
    return isinstance(query, list | tuple) and (
        "in_group_nested" in query[:1] or any(map(asks_nested, query))
    )


def check_attribute(name: str) -> None:
    """Raise ValueError if a text is not the name of an attribute, which may stand in a condition as it is."""
    if not _ATTRIBUTE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an attribute")


def check_pattern(pattern: str, variables: frozenset[str]) -> None:
    """Raise ValueError if a pattern has another variable than these."""
    for name in _REFERENCE.findall(pattern):
        if name not in variables:
            raise ValueError(f"this query has no variable {name}")
    if "${" in _REFERENCE.sub("", pattern):
        raise ValueError("a variable has no closing brace")


def dn_of(pattern: str, variables: Variables) -> str:
    """Return a DN by its pattern, in which variables are values of attributes; raises UndecidedError."""

    def value(name: str) -> str:
        return variables[name] if name == "user_dn" else escaped_value(variables[name])

    return _filled(pattern, variables, value)


def text_of(pattern: str, variables: Variables) -> str:
    """Return a text by its pattern, with the variables as they are; raises UndecidedError."""
    return _filled(pattern, variables, variables.__getitem__)


def _filled(pattern: str, variables: Variables, value: Callable[[str], str]) -> str:
    def reference(found: re.Match[str]) -> str:
        if found[1] not in variables:
            raise UndecidedError(f"there is no {found[1]}")
        return value(found[1])

    return _REFERENCE.sub(reference, pattern)


def _regex(pattern: str, variables: Variables) -> Matcher:
    """Return the matcher of a regular expression whose variables stand for their text; raises ValueError."""
    return Patterns().compile(_filled(pattern, variables, lambda name: re.escape(variables[name])))


def answer(query: Query, variables: Variables, directory: Any) -> bool:
    """Return the answer of a query to the values of a question: False also if it is undecided.

    `directory` answers the questions about entries (`backends.directory.Bound`).
    """
    try:
        return _answer(query, variables, directory)
    except UndecidedError:
        return False


def _answer(query: Query, variables: Variables, directory: Any) -> bool:  # noqa: C901, PLR0911, PLR0912 - one for each kind
    match query:
        case ("constant", value):
            return bool(value == "true")
        case ("exists", pattern):
            return bool(directory.exists(dn_of(pattern, variables)))
        case ("in_group", pattern, attribute):
            user = text_of(_USER, variables)
            return bool(directory.has_value(dn_of(pattern, variables), attribute, user))
        case ("in_group_nested", pattern, attribute, scope):
            return _is_nested(dn_of(pattern, variables), attribute, SCOPES[scope], variables, directory)
        case ("for", cases):
            for name, value, each in cases:
                if name not in variables:
                    raise UndecidedError(f"there is no {name}")
                if variables[name] == value:
                    return _answer(each, variables, directory)
            raise UndecidedError("no case of for")
        case ("not", each):
            return not _answer(each, variables, directory)
        case ("and", queries):
            return all(_answer(each, variables, directory) for each in queries)
        case ("or", queries):
            return any(_answer(each, variables, directory) for each in queries)
        case ("equals", first, second):
            others = set(_texts(second, variables, directory))
            return any(text in others for text in _texts(first, variables, directory))
        case ("match", text, pattern):
            matchers = list(_matchers(pattern, variables, directory))
            octets = [each.encode("utf-8", "surrogateescape") for each in _texts(text, variables, directory)]
            return any(matcher(each) for matcher in matchers for each in octets)
    raise UndecidedError("no query")


def _texts(query: Query, variables: Variables, directory: Any) -> list[str]:
    if query[0] == "string":
        return [text_of(query[1], variables)]
    _, pattern, attribute = query
    found: list[str] = directory.values(dn_of(pattern, variables), attribute)
    return found


def _matchers(query: Query, variables: Variables, directory: Any) -> Iterator[Matcher]:
    try:
        if query[0] == "string":
            yield _regex(query[1], variables)
        else:
            texts = _texts(query, variables, directory)
            if len(texts) > PATTERNS:
                raise UndecidedError("too many patterns")
            for text in texts:
                yield Patterns().compile(text)
    except InvalidPatternError as error:
        raise UndecidedError("a pattern is no regular expression") from error


def _is_nested(dn: str, attribute: str, below: bool, variables: Variables, directory: Any) -> bool:
    """Return whether the user is in a group, or in one that is, and so on; each group is looked at once."""
    wanted = directory.name(dn)
    if wanted is None:
        return False
    seen: set[str] = set()
    members = [text_of(_USER, variables)]
    while members:
        for group in directory.groups(members.pop(), attribute, below=below):
            if group == wanted:
                return True
            if group not in seen:
                seen.add(group)
                members.append(group)
        if len(seen) > GROUPS:
            raise UndecidedError("too many groups")
    return False


# -- the library ------------------------------------------------------------------------------------------------------


def ldap3() -> Any:
    """Return the package; raises ImportError. The first call is made before there are threads that use it."""
    if "ldap3" not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it uses old names of its codec
            import_module("ldap3.utils.conv")
            import_module("ldap3.utils.dn")
    return import_module("ldap3")


def escaped_in_name(text: str) -> str:
    """Return a text, which must not be empty, as the value of an attribute in the name (DN) of an entry."""
    escaped: str = ldap3().utils.dn.escape_rdn(text)
    return escaped


def escaped_in_condition(text: str) -> str:
    """Return a text as the value of an attribute in a condition (filter)."""
    escaped: str = ldap3().utils.conv.escape_filter_chars(text)
    return escaped
