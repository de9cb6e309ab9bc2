"""`make advisories`: published advisories about brokers and our libraries that nothing here answers.

They are in `advisories.toml` beside this file, which says what counts as an answer.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".toml")
PAGE = FILE.with_name("guarantees.md")
PINS = ROOT / "requirements" / "run.txt"
PRODUCTS = ("RabbitMQ", "LavinMQ", "aiohttp", "LMDB")
ROW = re.compile(r"^\| SEC-(\d\d) \| .+\| `test_", re.MULTILINE)


def rows() -> set[int]:
    """Return the numbers of the rows of guarantees.md that name a test."""
    return {int(number) for number in ROW.findall(PAGE.read_text(encoding="utf-8"))}


def pinned(product: str) -> tuple[int, ...]:
    """Return the version of a dependency that is installed with the broker; () if it is none."""
    found = re.search(rf"^{product.lower()}==([\d.]+)", PINS.read_text(encoding="utf-8"), re.MULTILINE)
    return version(found[1]) if found else ()


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def is_answered(advisory: dict[str, Any]) -> bool:
    """Return whether a row, a version or a reason answers an advisory."""
    if advisory.get("reason"):
        return True
    if "fixed" in advisory:
        return pinned(advisory["product"]) >= version(advisory["fixed"])
    return advisory.get("sec") in rows()


def unanswered(file: Path = FILE) -> Iterator[str]:
    for advisory in tomllib.loads(file.read_text(encoding="utf-8"))["advisory"]:
        if not is_answered(advisory):
            yield f"{advisory['id']} ({advisory['product']}): {advisory['summary']}"


def main() -> int:
    """Print what is not answered; return 1 if there is any."""
    found = list(unanswered())
    refreshed = tomllib.loads(FILE.read_text(encoding="utf-8"))["refreshed"]
    for line in found:
        print(line)
    print(f"{len(found)} advisories are not answered; the list is of {refreshed}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
