"""One Spark for all tests of a process, and directories of tables written by hand."""

import json
import os
import sys

import pytest

from leveret.analytics.reading import Input
from leveret.analytics.session import session

MADE_SECONDS = 300
"""Starting a Java and Spark's first query take long on a machine that does other things."""


def pytest_collection_modifyitems(items):
    """Tests that may be the first to start Spark have the time for it."""
    for item in items:
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(MADE_SECONDS))
            # py4j leaves the sockets to its Java to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A session on two cores that leaves nothing behind."""
    folder = tmp_path_factory.mktemp("spark")
    # Rows made by hand come through a process of its own, of the first Python in the PATH otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder),
        # Each query of a test runs once, over a few rows.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with session("local[2]", settings, light=True) as started:
        yield started


@pytest.fixture
def data(spark, tmp_path):
    """Return a function that makes an input of lines: `{"table": [lines]}`, a line being text or an object."""

    def make(tables, *, files=1):
        for name, lines in tables.items():
            folder = tmp_path / "in" / name / "dt=2026-11-21" / "hour=07" / "node=here"
            folder.mkdir(parents=True, exist_ok=True)
            texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
            for number in range(files):
                text = "".join(f"{line}\n" for line in texts[number::files])
                (folder / f"{name}-1-{number}.jsonl").write_text(text, encoding="utf-8")
        (tmp_path / "in").mkdir(exist_ok=True)
        return Input(spark, tmp_path / "in", tmp_path / "out")

    yield make
    spark.catalog.clearCache()
