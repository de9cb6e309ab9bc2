"""Public test suites: what is read from pytest's output, and the stand-in for Docker."""

import json
import urllib.request

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


def test_a_container_is_a_broker():
    """The stand-in for Docker names the port of a broker that runs as long as it."""
    with docker_api.containers(suites.address_of("leveret", "3.13")) as port:
        for method, path in (("POST", "containers/create"), ("GET", "containers/broker/json")):
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", b"{}", method=method)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                found = json.load(answer)
        assert suites.listens(int(found["NetworkSettings"]["Ports"]["5672/tcp"][0]["HostPort"]))
    assert not suites.listens(int(found["NetworkSettings"]["Ports"]["5672/tcp"][0]["HostPort"]))
