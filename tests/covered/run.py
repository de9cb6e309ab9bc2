"""Measures what of each pure module its own tests run (`make coverage`), and writes the table of docs/coverage.md.

The own tests of `storage/journal/journal.py` are `tests/storage/journal/test_journal.py` and those files whose names begin with that one's;
`tests/storage/queues/test_memory_monitor.py` belongs to `memory_monitor.py`, not to `memory.py`. Every file of tests runs once, in
a process of its own; what all of a package's tests run together stands beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from coverage import Coverage  # noqa: E402
from coverage.exceptions import NoDataError  # noqa: E402
from samples.made_tables import checked_out, put_between_marks  # noqa: E402

PAGE = ROOT / "docs" / "coverage.md"
PACKAGES = ("confirm", "exchanges", "storage", "broker/amqp")
"""Packages without event loop and sockets; each folder has its tests in the folder of that name in tests/."""
SECONDS = 1200
"""The deadline of one test, and half of that of a file: with coverage and beside others each takes longer."""


class Row(NamedTuple):
    """A module: its lines that can run, and the share in percent of lines and branches that its tests have run."""

    module: str
    lines: int
    own: float | None
    package: float


def owner(test: Path, modules: Iterable[Path]) -> Path | None:
    """The module whose own tests a file has: the one with the longest name that the file's begins with."""
    name = test.stem.removeprefix("test_")
    fitting = [module for module in modules if name == module.stem or name.startswith(f"{module.stem}_")]
    return max(fitting, key=lambda module: len(module.stem), default=None)


def run(folder: Path, test: Path) -> Path:
    """Run a file of tests; the file with what it has run. What the tests say goes to the standard error if one fails."""
    data = folder / f"{test.relative_to(ROOT)}".replace("/", "-")
    done = subprocess.run(
        [
            sys.executable, "-m", "coverage", "run", "--branch", f"--source={','.join(PACKAGES)}", f"--data-file={data}",
            "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"timeout={SECONDS}", str(test),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * SECONDS,
        env={**os.environ, "COVERAGE_FILE": str(data)},
    )  # fmt: skip
    if done.returncode:
        sys.stderr.write(f"{test.relative_to(ROOT)} fails:\n{done.stdout}\n")
    return data


def shares(folder: Path, data: Sequence[Path], only: str | None = None) -> dict[str, tuple[int, float]]:
    """Module -> its lines, and the share in percent of lines and branches that the files say were run."""
    report, combined = folder / "report.json", folder / "combined"
    combined.unlink(missing_ok=True)
    found = Coverage(data_file=str(combined), branch=True, source=list(PACKAGES), messages=False)
    try:
        found.combine([str(each) for each in data if each.exists()], keep=True)
        found.json_report(outfile=str(report), include=None if only is None else [str(ROOT / only)])
    except NoDataError:
        return {}
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {
        name: (each["summary"]["num_statements"], each["summary"]["percent_covered"])
        for name, each in files.items()
    }


def measure(packages: Sequence[str], jobs: int, only: str | None = None) -> list[Row]:
    """A row for each module of these packages, or for those alone whose path has `only` in it."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="covered-") as temporary, ThreadPoolExecutor(jobs) as pool:
        folder = Path(temporary)
        for package in packages:
            modules = [path for path in sorted((ROOT / package).rglob("*.py")) if path.name != "__init__.py"]
            tests = sorted((ROOT / "tests" / package).rglob("test_*.py"))
            owners = {test: owner(test, modules) for test in tests}
            wanted = [module for module in modules if only is None or only in str(module)]
            if only is not None:
                tests = [test for test in tests if owners[test] in wanted]
            data = dict(zip(tests, pool.map(partial(run, folder), tests), strict=True))
            together = shares(folder, list(data.values()))
            for module in wanted:
                name = str(module.relative_to(ROOT))
                lines, of_package = together.get(name, (0, 0.0))
                own = [data[test] for test in tests if owners[test] == module]
                _, of_own = shares(folder, own, name).get(name, (0, 0.0)) if own else (0, None)
                rows.append(Row(name, lines, of_own, of_package))
    return [row for row in rows if row.lines]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, the revision above them."""
    lines = [
        f"Revision {checked_out()}, Python {sys.version.split()[0]}:",
        "",
        "| Module | Lines | Own tests | All tests of the package |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        own = "-" if row.own is None else f"{row.own:.0f} %"
        lines.append(f"| `{row.module}` | {row.lines} | {own} | {row.package:.0f} % |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the table, and write it where it was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--only", help="modules whose path has this in it, by their own tests alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write-docs", action="store_true", help="of all packages, into docs/coverage.md")
    arguments = parser.parse_args()
    rows = measure(arguments.package, arguments.jobs, arguments.only)
    print(table(rows), end="")
    if arguments.write_docs:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(put_between_marks(text, "coverage", table(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
