"""The language of LDAP queries, without a directory."""

import pytest

from leveret.broker.auth.backends import ldap_queries as queries

NESTED = '{in_group_nested, "cn=${vhost}"}'
ANN = {
    "username": "ann",
    "user_dn": "uid=ann",
    "vhost": "v",
    "resource": "queue",
    "name": "ann-q",
    "permission": "read",
}


class Tree:
    """A directory as a dictionary: DN -> values by attribute."""

    def __init__(self, **entries):
        self.entries = {f"cn={name}": values for name, values in entries.items()}
        self.asked = []

    def exists(self, dn):
        self.asked.append(dn)
        return dn in self.entries

    def has_value(self, dn, attribute, value):
        self.asked.append(dn)
        return value in self.entries.get(dn, {}).get(attribute, ())

    def values(self, dn, attribute):
        self.asked.append(dn)
        return self.entries.get(dn, {}).get(attribute, [])

    def groups(self, member, attribute, *, below):
        self.asked.append((member, below))
        return [dn for dn, values in self.entries.items() if member in values.get(attribute, ())]

    def name(self, dn):
        return dn if dn in self.entries else None


def asked(text, tree=None, kind="resource_access", **more):
    return queries.answer(queries.query_of(kind, text), ANN | more, tree or Tree())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{constant, true}", True),
        ("{constant, false}", False),
        ("{'not', {constant, false}}", True),
        ("{'and', [{constant, true}, {constant, false}]}", False),
        ("{'or', [{constant, false}, {constant, true}]}", True),
        ('{equals, "${username}", "ann"}', True),
        ('{equals, {string, "${name}"}, {string, "${username}-q"}}', True),
        ('{match, "${name}", "^${username}-"}', True),
        ('{match, {string, "${name}"}, {string, "^b"}}', False),
        ('{match, "${name}", ""}', False),
        ('{match, "${name}", ".*"}', True),
        ("{for, [{permission, write, {constant, false}}, {permission, read, {constant, true}}]}", True),
        ('{for, [{resource, queue, {for, [{name, <<"ann-q">>, {constant, true}}]}}]}', True),
        ("{for, [{permission, write, {constant, true}}]}", False),
        ("{'not', {for, [{permission, write, {constant, true}}]}}", False),
    ],
)
def test_queries_without_a_directory(text, expected):
    """Each of these has its answer without a directory; a `for` without a case refuses, also below `not`."""
    assert not queries.needs_directory(queries.query_of("resource_access", text))
    assert expected is asked(text)


def test_queries_about_entries():
    """`exists`, `in_group` and `attribute` look at one entry."""
    tree = Tree(v={"member": ["uid=ann"], "description": ["can read", "x"]}, w={"memberUid": ["uid=ann"]})

    assert asked('{exists, "cn=${vhost}"}', tree)
    assert not asked('{exists, "cn=${name}"}', tree)
    assert asked('{in_group, "cn=${vhost}"}', tree)
    assert not asked('{in_group, "cn=w"}', tree)
    assert asked('{in_group, "cn=w", "memberUid"}', tree)
    assert asked('{equals, {attribute, "cn=v", "description"}, "can ${permission}"}', tree)
    assert asked('{match, {attribute, "cn=v", "description"}, "^can"}', tree)
    assert not asked('{match, "x", {attribute, "cn=none", "description"}}', tree)
    assert asked('{match, "xyz", {attribute, "cn=v", "description"}}', tree)


def test_nested_groups_are_found_and_circles_end():
    """A group in a group counts, each group is looked at once, and the scope is passed on."""
    tree = Tree(
        a={"member": ["uid=ann", "cn=b"]},
        b={"member": ["cn=a"]},
        v={"member": ["cn=b"]},
        other={"member": ["uid=bob"]},
    )

    assert asked(NESTED, tree)
    assert not asked(NESTED, tree, vhost="other")
    assert [("uid=ann", True), ("cn=a", True), ("cn=b", True), ("cn=v", True)] == tree.asked[-4:]
    assert not asked(NESTED, tree, vhost="none")
    assert asked('{in_group_nested, "cn=a", "member", single_level}', tree)
    assert ("uid=ann", False) == tree.asked[-1]


def test_too_many_groups_are_no_answer():
    """A user in more groups than are looked at is refused, also below `not`."""
    many = {f"g{number}": {"member": ["uid=ann"]} for number in range(queries.GROUPS + 1)}
    tree = Tree(v={"member": ["uid=bob"]}, **many)

    assert not asked(NESTED, tree)
    assert not asked(f"{{'not', {NESTED}}}", tree)


@pytest.mark.parametrize("text", ['{in_group, "cn=v"}', '{in_group_nested, "cn=v"}'])
def test_a_user_without_an_entry_is_in_no_group(text):
    """Groups of a user who has logged in by another name than a DN are undecided, so `not` allows nothing, too."""
    tree = Tree(v={"member": ["uid=ann"]})
    nameless = {name: value for name, value in ANN.items() if name != "user_dn"}

    for each in (text, f"{{'not', {text}}}"):
        assert not queries.answer(queries.query_of("resource_access", each), nameless, tree)
    assert asked(text, tree)


def test_too_many_patterns_are_no_answer():
    """An attribute with more regular expressions than are compiled is refused, also below `not`."""
    tree = Tree(v={"few": ["x"] * queries.PATTERNS, "many": ["x"] * (queries.PATTERNS + 1)})

    assert asked('{match, "x", {attribute, "cn=v", "few"}}', tree)
    for query in ('{match, "x", {attribute, "cn=v", "many"}}', '{match, "y", {attribute, "cn=v", "many"}}'):
        assert not asked(query, tree)
        assert not asked(f"{{'not', {query}}}", tree)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v\u034f",
        "v\ufe0f",
        "v\u1806",
        "v\u180b",
        "v\ufffc",
        "v\u3164",
        "v\U000e0100",
        " v",
        "v ",
        "a  b",
        "a\0",
        "a\n",
        "\u200bv",
        "v\u00ad",
        "\uff56",
        "a\u00a0b",
        "e\u0301",
        "\udcff",
    ],
)
def test_texts_that_a_directory_takes_for_others_are_no_values(text):
    """Spaces, controls, characters of no width and compatible forms are refused as values, also below `not`."""
    assert not queries.is_plain(text)
    with pytest.raises(queries.UndecidedError):
        queries.dn_of("cn=${vhost}", {"vhost": text})
    assert not asked("{'not', {exists, \"cn=${vhost}\"}}", vhost=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v", "cn=v,ou=x"),
        ("v,ou=admins", r"cn=v\,ou\=admins,ou=x"),
        ("v+uid=ann", r"cn=v\+uid\=ann,ou=x"),
        ('a"b<c>d;e', r"cn=a\"b\<c\>d\;e,ou=x"),
        ("#0a", r"cn=\#0a,ou=x"),
        ("a\\2cou", r"cn=a\\2cou,ou=x"),
        ("*)(uid=*", r"cn=*)(uid\=*,ou=x"),
        ("${user_dn}", r"cn=${user_dn},ou=x"),
        ("ü ö", "cn=ü ö,ou=x"),
    ],
)
def test_values_are_no_syntax_of_names(text, expected):
    """Text of a client is one value in the name of an entry, whatever characters it has."""
    assert expected == queries.dn_of("cn=${vhost},ou=x", {"vhost": text, "user_dn": "uid=ann"})


def test_values_are_no_regular_expressions():
    """In a regular expression a variable stands for its literal text; `${user_dn}` in a name is a whole name."""
    assert not asked('{match, "${name}", "^${username}-"}', username=".*")
    assert not asked('{match, "${name}", "^${username}-"}', username="bob|ann")
    assert "uid=ann" == queries.dn_of("${user_dn}", ANN)


def test_a_name_that_is_too_long_for_a_pattern_is_refused():
    """A pattern that becomes too long is no answer, whatever is around it."""
    assert not asked('{\'not\', {match, "x", "^${name}"}}', name="." * 1000)


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("vhost_access", "true", "a query is a tuple such as {constant, true}"),
        ("vhost_access", "{constant, maybe}", "there is no query constant of this form"),
        ("vhost_access", '{like, "x"}', "there is no query like of this form"),
        ("vhost_access", '{exists, "cn=${name}"}', "this query has no variable name"),
        ("vhost_access", '{exists, "cn=${vhost"}', "a variable has no closing brace"),
        ("vhost_access", '{match, "x", "${vhost"}', "a variable has no closing brace"),
        (
            "vhost_access",
            '{in_group, "cn=a", "member)(x=*"}',
            "'member)(x=*' is not the name of an attribute",
        ),
        ("vhost_access", '{in_group_nested, "cn=a", "member", base}', "must be subtree or single_level"),
        ("vhost_access", "{for, [{permission, read, {constant, true}}]}", "for: this query has no variable"),
        ("resource_access", "{for, [{permission, {constant, true}}]}", "for needs tuples such as"),
        ("resource_access", '{match, "${name}", "(?=a)(a+)+"}', "invalid regular expression"),
        ("resource_access", '{equals, {constant, true}, "x"}', "equals and match compare strings"),
        ("resource_access", "{'and', []}", "there is no query and of this form"),
        ("tags", "{constant, true}", "a query is a tuple such as {constant, true}"),
        ("tags", "[{administrator}]", "must be a list of tags with queries"),
        ("tags", '[{administrator, {exists, "cn=${vhost}"}}]', "this query has no variable vhost"),
    ],
)
def test_a_query_that_makes_no_sense_is_an_error(kind, text, problem):
    """The error says what is wrong; nothing is left to be found out when somebody logs in."""
    with pytest.raises(ValueError, match=r".") as caught:
        queries.query_of(kind, text)

    assert problem in str(caught.value)
