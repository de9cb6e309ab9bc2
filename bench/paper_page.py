"""Writes the figures of docs/paper-report.md, and a report of each sweep in bench/records: `make paper-report`.

Their numbers are of the tables of the job `confirm-compare`; the page has a summary of the sweep that its marks name.
With `--add DIR` the records of a sweep in DIR are packed into bench/records first; with `--check` nothing is written,
and the exit code is 1 if a file is stale.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from bench.drawing import svg
from bench.paper_archive import ARCHIVE, LIMIT, pack, plan_of
from bench.paper_records import Records, RecordsError
from bench.paper_tables import FIGURES, figure, page, tables_of
from leveret.analytics.session import session

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "paper-report.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack records, if asked to, and write the page; returns 0, 1 if it is not up to date, 2 on bad input."""
    made = argparse.ArgumentParser(prog="python -m bench.paper_page", description=__doc__)
    made.add_argument("--add", type=Path, metavar="DIR", help="a directory of `make paper-sweep`")
    made.add_argument(
        "--name", metavar="NAME", help="name of these records in bench/records, and of their mark"
    )
    made.add_argument("--check", action="store_true", help="write nothing")
    options = made.parse_args(arguments)
    if (options.add is None) != (options.name is None):
        made.error("--add and --name belong together")
    try:
        with session("local[2]", light=True) as spark:
            if options.add is not None:
                pack(spark, Records(options.add), ARCHIVE / options.name)
            if (octets := size(ARCHIVE)) > LIMIT:
                print(f"bench: the records have {octets:,} of {LIMIT:,} bytes", file=sys.stderr)
                return 2
            files = written(spark, PAGE.read_text(), ARCHIVE)
    except RecordsError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{'not up to date' if options.check else 'written'}: {path.relative_to(ROOT)}")
        if not options.check:
            path.write_text(files[path])
    return 1 if options.check and stale else 0


def size(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def written(spark: SparkSession, text: str, archive: Path) -> dict[Path, str]:
    """Return the page, with the summary of its sweep computed anew, and the report and figures of each sweep.

    Raises:
        RecordsError: the page does not name one sweep that has records.
    """
    files: dict[Path, str] = {}
    named = re.findall(r"^<!-- sweep (\S+) -->$", text, re.MULTILINE)
    kept = sorted(path.name for path in archive.iterdir() if path.is_dir())
    if len(named) != 1 or named[0] not in kept:
        message = f"the page has marks of {', '.join(named) or 'no sweep'}, {archive} has {', '.join(kept) or 'none'}"
        raise RecordsError(message)
    for name in kept:
        directory = archive / name
        plan = plan_of(directory)
        found = tables_of(spark, directory)
        drawn = {}
        for line, number in FIGURES.items():
            path = DOCS / "figures" / f"paper-figure-{number}-{name}.svg"
            files[path] = svg(figure(line, found))
            drawn[number] = f"figures/{path.name}"
        beside = {number: f"../../docs/{path}" for number, path in drawn.items()}
        heading = (
            f"# The sweep {name}\n\nWritten by `make paper-report`; docs/paper-report.md explains it.\n\n"
        )
        files[archive / f"{name}.md"] = heading + "\n".join(page(plan, found, beside)).strip() + "\n"
        if name == named[0]:
            text = replaced(text, name, "\n".join(page(plan, found, drawn, summary=True)))
    files[PAGE] = text
    return files


def replaced(text: str, name: str, body: str) -> str:
    """Return a page with the part between the marks of a sweep replaced."""
    begin, end = f"<!-- sweep {name} -->\n", f"<!-- end of sweep {name} -->\n"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        message = f"the page has no line {end.strip()}"
        raise RecordsError(message)
    return f"{head}{begin}\n{body.strip()}\n\n{end}{tail}"


if __name__ == "__main__":
    sys.exit(main())
