"""Checks of the values of parameters and policies, with RabbitMQ's texts.

Values are JSON values. The texts of errors are RabbitMQ's (rabbit_runtime_parameters, rabbit_parameter_validation),
because tools show and compare them; terms in them are printed as Erlang does, without its line breaks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leveret.broker.amqp.tables import binary_text, float_text, string_text

SHOVEL = "shovel"  # the component of parameters that are shovels
_MAX_CHARACTER = 255

Check = Callable[[str, Any], Iterable[str]]  # validator: given a key and its value, yields the errors found


class ParameterError(ValueError):
    """A parameter or policy cannot be set or cleared; the text is RabbitMQ's."""


MAX_DEPTH = 64  # maximum nesting depth of objects and lists in values set from outside


def is_too_deep(value: Any) -> bool:
    """Return whether objects and lists are nested deeper than `MAX_DEPTH`; not recursive, so safe for any value."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (Mapping, list, tuple))
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return False
    return True


def refuse(faults: Sequence[str]) -> None:
    """Raise ParameterError if there are any faults."""
    if faults:
        raise ParameterError("Validation failed\n\n" + "".join(f"{fault}\n" for fault in faults))


def check_keys(name: str, keys: Mapping[str, tuple[Check, bool]], term: Any) -> list[str]:
    """Return the faults of an object: missing mandatory keys, unknown keys and invalid values.

    `keys` has the validator of each key, and whether it is mandatory. An empty list is an object without keys, as in
    Erlang.
    """
    if is_too_deep(term):
        return [f"{name} is nested deeper than {MAX_DEPTH} levels"]
    if not isinstance(term, Mapping):
        if term == []:
            term = {}
        elif isinstance(term, list):
            return [f"Unrecognised terms {term_text(term)} in {name}"]
        else:
            return [f"{name} not a list {term_text(term)}"]
    strange = {key: value for key, value in term.items() if key not in keys}
    faults = [f"Unrecognised terms {pairs_text(strange)} in {name}"] if strange else []
    for key, (check, mandatory) in reversed(list(keys.items())):  # RabbitMQ reports the last fault first
        if key in term:
            faults += check(key, term[key])
        elif mandatory:
            faults.append(f'Key "{key}" not found in {name}')
    return faults


def check_number(key: str, value: Any) -> Iterable[str]:
    """Accept an integer of 64 bits (the range that can be stored) or a float."""
    if not isinstance(value, float) and not _is_integer(value):
        yield f"{key} should be a number, actually was {term_text(value)}"


def check_integer(key: str, value: Any) -> Iterable[str]:
    """Accept an integer of 64 bits."""
    if not _is_integer(value):
        yield f"{key} should be a number, actually was {term_text(value)}"


def check_rate(key: str, value: Any) -> Iterable[str]:
    """Accept a limit per second: an integer from 1 on, or a negative one for no limit."""
    yield from check_integer(key, value)
    if _is_integer(value) and not value:
        yield f"{key} should be at least 1, or negative for no limit"


def limit_checks(names: Iterable[str]) -> dict[str, tuple[Check, bool]]:
    """Return the checks of limits, all of them optional, for `check_keys`."""
    return {name: (check_rate if "publish" in name else check_integer, False) for name in names}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def pairs_text(pairs: Mapping[str, Any]) -> str:
    """Format an object as RabbitMQ's validators see it: as a list of pairs sorted by key."""
    return f"[{','.join(f'{{{term_text(key)},{term_text(pairs[key])}}}' for key in sorted(pairs))}]"


def term_text(value: Any) -> str:
    """Format a JSON value as Erlang's `~p` prints the term that RabbitMQ makes of it."""
    if isinstance(value, str):
        return binary_text(value.encode("utf-8", "surrogatepass"))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, Mapping):
        return f"#{{{','.join(f'{term_text(key)} => {term_text(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        # Erlang takes printable character codes for a string
        is_octets = value and all(type(each) is int and 0 <= each <= _MAX_CHARACTER for each in value)
        return (is_octets and string_text(bytes(value))) or f"[{','.join(map(term_text, value))}]"
    return str(value)
