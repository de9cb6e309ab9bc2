"""Tables written by programs into pages of the documentation, and the revision they are of."""

from checks.repository import git


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and behind the table of that name."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def put_between_marks(text: str, name: str, table: str) -> str:
    """Return `text` with a table in place of what is between the marks of that name."""
    begin, end = marks(name)
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{table}\n{end}{after}"


def checked_out() -> str:
    """Return the revision that is checked out, with `-dirty` if files differ from it; `unknown` outside of git."""
    return (git("describe", "--always", "--dirty", "--exclude=*") or "unknown").strip()
