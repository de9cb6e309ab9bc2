"""Names that a mistyped one may stand for."""

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Final

_LENGTH: Final = 3  # difference in length up to which a name is compared
_MOST: Final = 300  # names that are compared, which takes a moment
_SIMILAR: Final = 0.7


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about a name that does not exist; '' if no name with its first letter is like it."""
    near = (each for each in names if each[:1] == name[:1] and abs(len(each) - len(name)) <= _LENGTH)
    found = difflib.get_close_matches(name, list(islice(near, _MOST)), 1, _SIMILAR)
    return f"; did you mean '{found[0]}'?" if found else ""
