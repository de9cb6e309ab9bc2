"""Records of a sweep as Parquet, and the page that is written from them."""

import re

import msgspec
import pytest
from samples.paper_runs import made_plan, made_run

from bench.paper_archive import ARCHIVE, LIMIT, pack, plan_of
from bench.paper_page import PAGE, replaced, size, written
from bench.paper_records import TABLES, Records, RecordsError
from leveret.analytics.reading import Input

TEXT = "# Page\n\n<!-- sweep small -->\nold\n<!-- end of sweep small -->\n\nThe end.\n"


@pytest.fixture(scope="module")
def packed(spark, tmp_path_factory):
    """A small sweep, packed, and its records."""
    folder = tmp_path_factory.mktemp("packed")
    records, plan = Records(folder / "sweep"), made_plan(queues=(1, 2), blocks=2)
    records.begin(plan)
    for trial in plan.trials:
        disturbed = 0.3 if trial.number == 1 else 0.0
        records.add(*made_run(plan, trial, 1000.0 / trial.queues, other=disturbed), trial.number)
    pack(spark, records, folder / "archive" / "small")
    return folder / "archive", records


def test_packed_records_are_analysed_as_they_lie(spark, packed, tmp_path):
    """The job's input may be the folder of packed records: each table is one file, with the rows of the sweep."""
    archive, records = packed
    data = Input(spark, archive / "small", tmp_path)

    for kind, name in TABLES.items():
        rows = [row.asDict(recursive=True) for row in data.table(name).collect()]
        assert sorted(map(repr, records.read(kind))) == sorted(
            repr(each) for each in msgspec.convert(rows, list[kind])
        )
    assert records.plan() == plan_of(archive / "small")
    assert {"plan.json", "bench_run.parquet", "bench_sample.parquet", "bench_cost.parquet"} == {
        path.name for path in (archive / "small").iterdir()
    }


def test_the_page_is_computed_from_the_records(spark, packed):
    """The summary between a sweep's marks, its report and two figures are made anew; the rest of the page stays."""
    archive, _ = packed

    files = written(spark, TEXT, archive)

    text, report = files[PAGE], files[archive / "small.md"]
    assert text.startswith("# Page\n\n<!-- sweep small -->\n\nSweep sweep of 15 January 2027, revision abc")
    assert "| 1 | `default` | 2 | 1,000 ± 0 |" in report
    assert "### Beside the paper" in text
    assert "### Beside the paper" in report
    assert text.endswith("<!-- end of sweep small -->\n\nThe end.\n")
    assert ["paper-figure-5-small.svg", "paper-figure-6-small.svg", "small.md"] == sorted(
        path.name for path in files if path != PAGE
    )
    assert text == written(spark, text, archive)[PAGE]


def test_a_sweep_without_records_is_an_error(spark, packed, tmp_path):
    """Marks and records belong together, a mark has an end, and a sweep without a run is not packed."""
    archive, _ = packed
    with pytest.raises(RecordsError, match=r"marks of other, .* has small"):
        written(spark, TEXT.replace("small", "other"), archive)
    with pytest.raises(RecordsError, match="no line <!-- end of sweep small"):
        replaced("<!-- sweep small -->\n", "small", "")
    empty = Records(tmp_path / "empty")
    empty.begin(made_plan())
    with pytest.raises(RecordsError, match="holds no run"):
        pack(spark, empty, tmp_path / "packed")


def test_the_page_in_docs_is_that_of_the_records(spark, tmp_path):
    """docs/paper-report.md, its figures and its sweep's report are what `make paper-report` makes of bench/records."""
    assert size(ARCHIVE) <= LIMIT
    (name,) = re.findall(r"^<!-- sweep (\S+) -->$", PAGE.read_text(), re.MULTILINE)
    (tmp_path / name).symlink_to(ARCHIVE / name)  # other sweeps take as long; `--check` looks at all
    for path, text in written(spark, PAGE.read_text(), tmp_path).items():
        kept = ARCHIVE / path.name if path.parent == tmp_path else path
        assert numbered(kept.read_text()) == numbered(text), f"{path.name}: make paper-report writes it"


def numbered(text: str) -> str:
    """Return a figure with its ids in order: they are hashes of numbers whose last digits differ between Pythons (3.12 adds more exactly)."""
    found: dict[str, str] = {}
    return re.sub(r"\b[a-z][0-9a-f]{10}\b", lambda each: found.setdefault(each[0], f"id{len(found)}"), text)
