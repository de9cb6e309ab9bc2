"""Public test suites: what is read from pytest's output, and the stand-in for Docker."""

import json
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest

from bench import docker_api, suites

OUTPUT = """
t/test_it.py ...F [100%]
FAILED t/test_it.py::test_one - assert 1 in 2s
ERROR t/test_it.py::test_two
====== 1 failed, 3 passed, 2 skipped, 1 error in 4.50s (0:00:04) ======
longest step of the event loop: 3.7 ms
"""


def test_the_result_of_a_suite_is_read():
    """Counts come from pytest's last line although others follow it; failed tests are named."""
    assert "1 failed, 3 passed, 2 skipped, 1 error in 4.50s (0:00:04)" == suites.summary(OUTPUT)
    assert [
        "FAILED t/test_it.py::test_one - assert 1 in 2s",
        "ERROR t/test_it.py::test_two",
    ] == suites.failures(OUTPUT)
    assert "ERROR: usage" == suites.summary("ERROR: usage\n")
    assert ["test_it.py::test_one", "test_it.py::test_two"] == [
        suites.test_of(line) for line in suites.failures(OUTPUT)
    ]
    assert "test_it.py::test_a::test_b" == suites.test_of("FAILED t/i/test_it.py::test_a::test_b[a/b c] - x")


def run_all(monkeypatch, *outputs):
    """Run the suite of Celery, whose pytest prints this, and that if it runs again; return the error at the end."""
    printed = iter(outputs)
    monkeypatch.setattr(sys, "argv", ["suites", "celery"])
    monkeypatch.setattr(shutil, "which", lambda _name: "redis-server")
    monkeypatch.setattr(suites, "built", lambda: Path("wheel"))
    monkeypatch.setattr(suites, "prepared", lambda *_: (Path(), Path()))
    monkeypatch.setattr(suites, "run_suite", lambda *_: next(printed))
    try:
        suites.main()
    except SystemExit as error:
        return error.code
    return None


def test_a_failure_that_is_not_expected_is_an_error(monkeypatch, capsys):
    """The command ends well with failures that have a reason; any other fails it if it fails twice."""
    (suite,) = [each for each in suites.SUITES if each.name == "celery"]
    name, reason = next(iter(suite.expected.items()))
    expected = f"FAILED t/integration/{name}[a-1] - assert\n== 1 failed, 3 passed in 4.50s ==\n"
    other = "FAILED t/integration/test_canvas.py::test_other"

    assert run_all(monkeypatch, expected) is None
    assert f"expected: {reason}" in capsys.readouterr().out
    assert run_all(monkeypatch, f"{other}\n{expected}", "== 1 passed in 1.00s ==") is None
    assert other in run_all(
        monkeypatch, f"{other}\n{expected}", f"{other}\n== 1 failed, 1 passed in 1.00s =="
    )
    assert "test_other" in run_all(monkeypatch, f"{other}\n{expected}", f"{other}\n== 1 failed in 1.00s ==")
    assert "no test passed" in run_all(monkeypatch, "ERROR: usage\n")


def test_some_tests_of_celery_pass(monkeypatch):
    """Celery's tests of `inspect` pass on the broker of this checkout, if the suite was fetched before."""
    (suite,) = [each for each in suites.SUITES if each.name == "celery"]
    place = suites.FOLDER / f"celery-{suite.version}"
    folder, python = place / f"celery-{suite.version}", place / "env" / "bin" / "python"
    if not python.exists() or shutil.which("redis-server") is None:
        pytest.skip("needs redis-server, and `make bench NAME=suites ARGS=celery` to have fetched the suite")
    monkeypatch.setenv("PYTHONPATH", str(suites.ROOT))
    output = suites.run_suite(suite, folder, python, "leveret", "3.13", ["t/integration/test_inspect.py"])

    assert [] == suites.failures(output), output[-3000:]
    assert " passed" in suites.summary(output), output[-3000:]


def test_a_container_is_a_broker():
    """The stand-in for Docker names the port of a broker that runs as long as it."""
    with docker_api.containers(suites.address_of("leveret", "3.13")) as port:
        for method, path in (("POST", "containers/create"), ("GET", "containers/broker/json")):
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", b"{}", method=method)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                found = json.load(answer)
        assert suites.listens(int(found["NetworkSettings"]["Ports"]["5672/tcp"][0]["HostPort"]))
    assert not suites.listens(int(found["NetworkSettings"]["Ports"]["5672/tcp"][0]["HostPort"]))
