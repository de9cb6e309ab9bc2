"""The short form of `make coverage`, and which tests are a module's own."""

from pathlib import Path

from covered.run import ROOT, Row, measure, owner, table

MODULES = [
    Path("storage/queues/memory_queue.py"),
    Path("storage/queues/memory_monitor.py"),
    Path("storage/queues/rates.py"),
]


def test_a_module_has_the_tests_that_are_named_for_it():
    """A file of tests belongs to the module with the longest name that its own begins with, or to none."""
    memory, monitor, _rates = MODULES

    assert memory == owner(Path("test_memory_queue.py"), MODULES)
    assert memory == owner(Path("test_memory_queue_bounds.py"), MODULES)
    assert monitor == owner(Path("test_memory_monitor.py"), MODULES)
    assert monitor == owner(Path("test_memory_monitor_rates.py"), MODULES)
    assert owner(Path("test_memoryless.py"), MODULES) is None


def test_a_modules_own_tests_are_measured():
    """The SASL mechanisms' own tests run nearly all of their module, counted in lines."""
    (row,) = measure(["broker/amqp"], 1, "amqp/sasl.py")

    assert "broker/amqp/sasl.py" == row.module
    assert row.lines > 20
    assert 95 < row.own <= row.package


def test_the_table_tells_of_modules_without_tests_of_their_own():
    """A module that only the tests of its package run has a dash."""
    rows = [Row("storage/a.py", 10, None, 50.0), Row("storage/b.py", 20, 99.6, 100.0)]

    assert [
        "| `storage/a.py` | 10 | - | 50 % |",
        "| `storage/b.py` | 20 | 100 % | 100 % |",
    ] == table(rows).splitlines()[-2:]


def test_the_page_has_a_table():
    """docs/coverage.md has the marks between which `make coverage ARGS=--write-docs` writes, and rows between them."""
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    written = page.partition("<!-- coverage: begin -->")[2].partition("<!-- coverage: end -->")[0]

    assert "| `" in written
