"""Whole files of a data directory: each removed, emptied, cut, zeroed, or put there from another one.

Two directories are made, the one of a broker that was killed and the one that the next start has stopped, and two to
take files from: another store, and the same one at an earlier start. Each copy has one file that is not as it was, and
is opened as in `torn.py`. A broker that does not start ends with exit code 65 and names the file: *refused*. One that
lacks messages, or has others, says so in its log, or `leveret store check` does: *reported*. Otherwise nothing has changed:
*harmless*. The table of all is in docs/reliability.md, and each cell has to be what it says.
"""

import os
import random
import shutil
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

from checks.repository import ROOT
from crash.kills import Totals
from crash.ledger import make_body
from crash.link import Link, publish_frames
from crash.load import fill
from crash.site import Site
from crash.torn import (
    FILES as SETTINGS,
    MESSAGES,
    QUEUES,
    REPORTED,
    SOCKETS,
    Opener,
    Served,
    check,
    judge,
    make_data,
    served,
    stop_cleanly,
)
from pamqp import commands
from samples.made_tables import marks, put_between_marks

PAGE = ROOT / "docs" / "reliability.md"
NAME = "whole files"
STATES = ("killed", "stopped")
FILES = (
    "store/data.mdb",
    "store/redo.log",
    "store/lock.mdb",
    "blobs/*",
    "paged/data.mdb",
    "paged/lock.mdb",
    "leveret.lock",
)
"""Every file of a data directory; `*` is each of the names there."""
DEEDS = ("removed", "emptied", "cut", "zeroed", "another store's", "an earlier one")
LOGGED = 5
"""Small commits of the last run, the first of which goes to the tables."""
REFUSED = 65
_KEPT = 10
"""Of a file that is cut so much is left: one part of so many. A redo log has a reserve that it can do without."""


class Case(NamedTuple):
    """A deed and the file that it is done to."""

    state: str
    file: str
    deed: str


class Stores(NamedTuple):
    """Data directories, and what their messages are."""

    left: dict[str, Path]
    """The one to be damaged, by its state."""
    other: Path
    earlier: Path
    kept: dict[str, Served]
    acked: dict[str, Served]


async def make_stores(home: Path, opener: Opener, rng: random.Random) -> Stores:
    paths = [home / name for name in ("one", "two")]
    for path in paths:
        path.mkdir()
    site, other = (Site(path) for path in paths)
    try:
        await make_data(other, rng)
        kept, acked = await make_data(site, rng)
        earlier = home / "earlier"
        shutil.copytree(site.data_dir, earlier, ignore=SOCKETS)
        await _log_some(site, kept)
    finally:
        site.close()
        other.close()
    unknown = [
        str(name)
        for name in (path.relative_to(site.data_dir) for path in site.data_dir.rglob("*") if path.is_file())
        if not any(name.match(each) for each in FILES)
    ]
    assert not unknown, f"the table has to tell of {unknown}"
    stopped = home / "stopped"
    shutil.copytree(site.data_dir, stopped, ignore=SOCKETS)
    await stop_cleanly(opener, stopped)
    return Stores(
        dict(zip(STATES, (site.data_dir, stopped), strict=True)), other.data_dir, earlier, kept, acked
    )


async def _log_some(site: Site, kept: dict[str, Served]) -> None:
    """Start the broker once more, have it log some commits that it does not write to the tables, and kill it."""
    link = await Link.connect(site.start(*SETTINGS))
    await link.open(1, None)
    await link.call(commands.Tx.Select())
    channel = site.ledger.open_channel()
    queue = QUEUES[0]
    for number in range(LOGGED):
        ident = site.ledger.next_id(channel)
        body = make_body(ident, fill(20, number))
        site.ledger.published(ident, (queue,), body[-8:])
        link.transport.write(publish_frames(queue, body))
        await link.call(commands.Tx.Commit())
        kept[queue].append((ident, body[-8:]))
    site.kill()


def cases() -> list[Case]:
    return [Case(*each) for each in product(STATES, FILES, DEEDS)]


def make_copy(case: Case, copy: Path, stores: Stores) -> None:
    """Make a copy with one file that is not as it was."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(stores.left[case.state], copy, ignore=SOCKETS)
    source = stores.other if case.deed == DEEDS[4] else stores.earlier
    sources = sorted(source.glob(case.file))
    for number, path in enumerate(sorted(copy.glob(case.file))):
        if case.deed == "removed":
            path.unlink()
        elif case.deed == "emptied":
            os.truncate(path, 0)
        elif case.deed == "cut":
            os.truncate(path, path.stat().st_size // _KEPT)
        elif case.deed == "zeroed":
            path.write_bytes(bytes(path.stat().st_size))
        else:
            shutil.copyfile(sources[number % len(sources)], path)


async def outcome(case: Case, opener: Opener, copy: Path, stores: Stores) -> tuple[str, list[str]]:
    """Open a damaged copy; returns what the table says of it, and what is wrong."""
    make_copy(case, copy, stores)
    most = 10 + max(len(stores.kept[queue]) + len(stores.acked[queue]) for queue in QUEUES)
    opened = await served(opener, copy, most)
    found = opened.served or {}
    wrong, missing, back = judge(stores.kept, stores.acked, found)
    if opened.hangs:
        wrong.append("it does not answer")
    if opened.served is None:
        status = os.waitstatus_to_exitcode(opener.end())
        text = opener.text("err")
        if status != REFUSED or not any(name in text for name in (Path(case.file).name, "the data in")):
            wrong.append(f"exit {status}: {text}")
        return "refused", wrong
    counted = all(said == len(found.get(queue, ())) for queue, said in opened.counts.items())
    if not missing and not back and counted:
        opener.end()
        return "harmless", wrong
    opener.stop()  # what it knows to be damaged it logs once a second, and then
    if REPORTED.search(opener.text("out") + opener.text("err")) is None:
        make_copy(case, copy, stores)
        if not check(opener, copy):
            wrong.append(f"{missing} missing, {back} came back, and neither the log nor store check says so")
    return "reported", wrong


async def whole_files(
    home: Path, some: list[Case], seed: int, *, say: Callable[[str], object] = print
) -> tuple[Totals, dict[Case, str]]:
    totals = Totals("whole-files")
    began = time.monotonic()
    outcomes: dict[Case, str] = {}
    with Opener(home) as opener:
        stores = await make_stores(home, opener, random.Random(seed))
        totals.counts["confirmed"] = MESSAGES
        for case in some:
            outcomes[case], wrong = await outcome(case, opener, home / "copy", stores)
            totals.cycles += 1
            totals.counted += 1
            totals.notes[outcomes[case]] += 1
            for problem in wrong:
                totals.broke("O5", f"{case}: {problem}")
            say(f"{case.file} {case.deed}, {case.state}: {outcomes[case]} {'; '.join(wrong)}")
    totals.seconds = time.monotonic() - began
    return totals, outcomes


def table(outcomes: dict[Case, str]) -> list[str]:
    """Return the table of the outcomes, a row for each file and state."""
    lines = [f"| | {' | '.join(DEEDS)} |", f"|---|{'---|' * len(DEEDS)}"]
    for file in FILES:
        for state in STATES:
            cells = [outcomes.get(Case(state, file, deed), "") for deed in DEEDS]
            if any(cells):
                lines.append(f"| `{file}`, {state} | {' | '.join(cells)} |")
    return lines


def documented() -> dict[Case, str]:
    """Return the outcomes that docs/reliability.md has."""
    begin, end = marks(NAME)
    text = PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    found = {}
    for line in text.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first.startswith("`"):
            file, _, state = first.strip("`").partition("`, ")
            found.update({Case(state, file, deed): cell for deed, cell in zip(DEEDS, cells, strict=True)})
    return found


def write(outcomes: dict[Case, str]) -> None:
    text = put_between_marks(PAGE.read_text(encoding="utf-8"), NAME, "\n".join([*table(outcomes), ""]))
    PAGE.write_text(text, encoding="utf-8")
