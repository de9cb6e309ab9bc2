"""The page about Spark: its programs print what it says, with a real Spark."""

import os
import sys

import pytest
from checks import how_to
from processes.running import ROOT

from leveret.analytics import java
from leveret.analytics.session import LIGHT

PAGE = ROOT / "docs" / "howto" / "spark-streaming.md"
# Each query of the page runs once, over a few rows, and nobody looks at Spark's page.
DEFAULTS = LIGHT | {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
}


@pytest.mark.timeout(600)
def test_the_page_prints_what_it_says(tmp_path, monkeypatch):
    """Orders of a stream become a Parquet table, and sums of each minute that are messages of a queue."""
    home = java.home_for_spark(java.find(os.environ), os.environ)
    defaults = tmp_path / "spark" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("".join(f"{name} {value}\n" for name, value in DEFAULTS.items()), encoding="utf-8")
    for name, value in {
        "JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(defaults.parent),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(how_to, "SECONDS", 300)
    page = tmp_path / "page.md"
    page.write_text(
        PAGE.read_text(encoding="utf-8").replace("pip install", ": pip install"), encoding="utf-8"
    )

    assert 2 == how_to.follow(page, tmp_path, str)
