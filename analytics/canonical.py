"""The form in which the broker writes a row as a line of JSON, as a regular expression. Pure.

Any parser reads a line of this form as the same row: each column is there, in the declared order, with a value
of its type that fits into it, and texts have no escape that parsers disagree about. Other lines may be rows as well;
what they are is for Spark's parser to say.
"""

from typing import Any, Final

from leveret.analytics.schemas import VERSION, Table

_TEXT: Final = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\bfnrt]|u00[01][0-9a-f]))*"'
_PLAIN: Final = {
    # 18 and 9 digits always fit into 64 and 32 bits. -0 is null to Sail, and 007 is no number in JSON.
    "long": "(?:0|-?[1-9][0-9]{0,17})",
    "integer": "(?:0|-?[1-9][0-9]{0,8})",
    # Python writes no more digits than these; 1e400 is null to one parser and infinite to another.
    "double": r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,20})?(?:[eE](?:-[0-9]{1,3}|[+]?[0-9]{1,2}))?",
    "string": _TEXT,
    "boolean": "(?:true|false)",
}


def line_pattern(table: Table) -> str:
    """Return the pattern of a line of a table, for regular expressions of Python and Rust."""
    columns = [_column(column.name, column.type, optional=column.optional) for column in table.columns]
    return rf"^\{{{','.join(columns)}\}}$"


def _column(name: str, kind: str | dict[str, Any], *, optional: bool) -> str:
    if name == "v":
        return f'"v":{VERSION}'
    value = _value(kind)
    return f'"{name}":(?:{value}|null)' if optional else f'"{name}":{value}'


def _value(kind: str | dict[str, Any]) -> str:
    if isinstance(kind, str):
        return _PLAIN[kind]
    match kind["type"]:
        case "array":
            return rf"\[{_several(_value(kind['elementType']))}\]"
        case "map":
            entry = f"{_TEXT}:{_value(kind['valueType'])}"
            return rf"\{{{_several(entry)}\}}"
        case _:
            fields = [_column(field["name"], field["type"], optional=False) for field in kind["fields"]]
            return rf"\{{{','.join(fields)}\}}"


def _several(one: str) -> str:
    return f"(?:{one}(?:,{one})*)?"
