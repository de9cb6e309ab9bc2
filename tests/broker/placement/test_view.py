"""One view over all processes of virtual hosts: the management API and the commands of the front."""

import base64
import http.client
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pytest
from pika.exceptions import AMQPError
from processes.fronts import connect, ctl, front, pid_of
from processes.running import Running, free_port
from processes.waiting import wait_until

JSON = {"content-type": "application/json"}


class Answer(NamedTuple):
    status: int
    value: Any
    missing: str | None
    octets: bytes


class API:
    """The API of a front: for the operator, or over TCP for a user with the password `secret`."""

    def __init__(self, running: Running, port: int = 0, user: str = "") -> None:
        if port:
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            login = base64.b64encode(f"{user}:secret".encode()).decode()
            self._headers = JSON | {"authorization": f"Basic {login}"}
            return
        self._connection = http.client.HTTPConnection("localhost", timeout=30)
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.settimeout(30)
        folder = os.open(running.data_dir, os.O_RDONLY)
        self._connection.sock.connect(f"/proc/self/fd/{folder}/ctl.sock")
        os.close(folder)
        self._headers = JSON

    def __call__(self, path: str, method: str = "GET", body: object = None) -> Answer:
        octets = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api/{path}", octets, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        is_json = content and "json" in (answer.getheader("content-type") or "")
        value = json.loads(content) if is_json else None
        return Answer(answer.status, value, answer.getheader("x-leveret-missing"), content)

    def opened(self, path: str) -> http.client.HTTPResponse:
        """Return an answer of which nothing is read yet."""
        self._connection.request("GET", f"/api/{path}", None, self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def api_of(running: Running, port: int = 0, user: str = "") -> Iterator[API]:
    api = API(running, port, user)
    try:
        yield api
    finally:
        api.close()


@pytest.fixture(scope="module")
def port() -> int:
    """Return the port of the API for users."""
    return free_port()


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, port: int, metrics_port: int) -> Iterator[Running]:
    """Run a front, whose virtual hosts a and b are in two processes."""
    more = {
        "management.enabled": "true",
        "management.tcp.port": port,
        "prometheus.enabled": "true",
        "prometheus.tcp.port": metrics_port,
    }
    with front(tmp_path_factory.mktemp("front"), **more) as running:
        yield running


@pytest.fixture
def api(running: Running) -> Iterator[API]:
    """Ask it as the operator; all queues are deleted at the end."""
    with api_of(running) as api:
        yield api
        for row in api("queues").value:
            api(f"queues/{row['vhost']}/{row['name']}", "DELETE")


@contextmanager
def stopped(running: Running, process: int) -> Iterator[None]:
    """Have a process not run at all meanwhile."""
    pid = pid_of(running, process)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def declare(api: API, vhost: str, *names: str) -> None:
    for name in names:
        assert 201 == api(f"queues/{vhost}/{name}", "PUT", {"durable": True}).status


def names(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["vhost"], row["name"]) for row in rows]


def test_lists_are_those_of_all_processes(running: Running, api: API) -> None:
    """Lists are joined, sorted and divided into pages as those of one process, and a change is seen at once."""
    declare(api, "b", "q2", "q4", "x1")
    declare(api, "a", "q1", "q3", "x2")

    assert [("a", "q1"), ("a", "q3"), ("a", "x2"), ("b", "q2"), ("b", "q4"), ("b", "x1")] == names(
        api("queues").value
    )
    by_name = api("queues?sort=name&sort_reverse=true&columns=name").value
    assert [{"name": name} for name in ("x2", "x1", "q4", "q3", "q2", "q1")] == by_name
    page = api("queues?page=2&page_size=2&sort=name&name=q").value
    assert [("a", "q3"), ("b", "q4")] == names(page.pop("items"))
    counts = {
        "total_count": 6,
        "item_count": 2,
        "filtered_count": 4,
        "page": 2,
        "page_size": 2,
        "page_count": 2,
    }
    assert counts == page
    beyond = api("queues?page=3&page_size=2&name=q")
    assert (400, "page_out_of_range") == (beyond.status, beyond.value["error"])
    assert 400 == api("queues?page=1&page_size=501").status
    assert {"a", "b"} == {row["vhost"] for row in api("exchanges?page=1&page_size=500").value["items"]}
    assert 6 == len(api("bindings").value)
    assert 204 == api("queues/a/q1", "DELETE").status
    assert 5 == len(api("queues").value)


def test_figures_are_those_of_all_processes(running: Running, api: API) -> None:
    """The overview, the node, virtual hosts, definitions and commands count what all processes have."""
    with connect(running, "a") as one, connect(running, "b") as other:
        for connection in (one, other):
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"message")
            assert channel.queue_declare("q", passive=True).method.message_count

        overview = api("overview").value
        assert {"queues": 2, "connections": 2, "channels": 2, "consumers": 0, "exchanges": 14} == overview[
            "object_totals"
        ]
        assert 2 == overview["queue_totals"]["messages_ready"]
        assert overview["message_stats"]["publish"] >= 2
        (node,) = api("nodes").value
        assert str(running.process.pid) == node["os_pid"]
        used = [
            api(f"nodes/{node['name']}").value["mem_used"],
            api("leveret/resources").value["memory"]["used"],
        ]
        assert min(used) > 3 * 15_000_000
        rows = [("a", 1), ("b", 1)]
        wait_until(lambda: rows == [(row["name"], row["messages"]) for row in api("vhosts").value])
        assert 1 == api("vhosts/b").value["messages"]
        definitions = api("definitions").value
        assert {"a", "b"} == {each["vhost"] for each in definitions["queues"]}
        assert {"a", "b"} == {each["name"] for each in definitions["vhosts"]}
        assert {"1", "guest"} == {each["name"] for each in definitions["users"]}
        assert 200 == api("health/checks/alarms").status
        code, text = ctl(running, "status")
        assert 0 == code
        assert "Queue count: 2" in text
        columns = ("name", "messages_ready", "messages")
        assert ["q", "1", "1"] == ctl(running, "-q", "list_queues", "-p", "b", *columns)[1].split()[-3:]


def test_each_object_is_asked_of_its_process(running: Running, api: API) -> None:
    """An object is found by its name in whatever process has it; one that none has is 404."""
    connection = connect(running, "b")
    connection.channel().queue_declare("q", durable=True)
    body = {"routing_key": "q", "payload": "x" * 300_000, "payload_encoding": "string", "properties": {}}
    assert api("exchanges/b/amq.default/publish", "POST", body).value == {"routed": True}
    get = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert 300_000 == api("queues/b/q/get", "POST", get).value[0]["payload_bytes"]
    assert "q" == api("leveret/explain/queue/b/q").value["name"]
    assert 400 == api("queues/b/q/get", "POST", {"count": 1}).status
    assert (404, 404) == (api("queues/b/none").status, api("queues/none/q").status)
    assert (404, 404) == (api("connections/none").status, api("none").status)
    assert 204 == api("reset", "DELETE").status

    (row,) = api("connections").value
    path = f"connections/{row['name'].replace(' ', '%20')}"
    assert "b" == api(path).value["vhost"]
    assert 204 == api(path, "DELETE").status
    with pytest.raises(AMQPError):
        connection.process_data_events(30)
    wait_until(lambda: not api("connections").value)


def test_a_new_virtual_host_is_there_at_once(running: Running, api: API) -> None:
    """A virtual host and a permission hold for the next request, whatever the name."""
    with api_of(running) as other:
        for _ in range(10):
            assert 201 == api("vhosts/%2Fnew%20..", "PUT").status
            assert 201 == other("queues/%2Fnew%20../%2F", "PUT", {}).status
            assert [("/new ..", "/")] == names(api("queues/%2Fnew%20..").value)
            assert 204 == api("vhosts/%2Fnew%20..", "DELETE").status
            assert 404 == other("queues/%2Fnew%20..").status
            assert {"a", "b"} >= {row["vhost"] for row in api("exchanges").value}


def test_users_see_what_they_may(running: Running, api: API, port: int) -> None:
    """A user gets the rows of its virtual hosts only, and may not change what it may not in one process."""
    with api_of(running, port, "user ä") as user:
        declare(api, "a", "q")
        declare(api, "b", "q")
        assert 401 == user("queues").status
        assert 201 == api("users/user%20%C3%A4", "PUT", {"password": "secret", "tags": "management"}).status
        assert [] == user("queues").value
        rights = {"configure": "^own", "write": "", "read": ".*"}
        assert 201 == api("permissions/b/user%20%C3%A4", "PUT", rights).status

        assert [("b", "q")] == names(user("queues").value)
        assert (200, 401) == (user("queues/b").status, user("queues/a").status)
        assert (201, 401) == (user("queues/b/own", "PUT", {}).status, user("queues/b/q2", "PUT", {}).status)
        assert 401 == user("nodes").status
        assert 401 == user("definitions").status
        assert 2 == user("overview").value["object_totals"]["queues"]


def test_a_dead_process_is_named(running: Running, api: API) -> None:
    """Answers come within seconds without a process that does not answer, and name it; its own objects are an error."""
    declare(api, "a", "q")
    declare(api, "b", "q")
    with stopped(running, 2):
        began = time.monotonic()
        answer = api("queues")
        assert time.monotonic() - began < 5
        assert (200, [("a", "q")], "2") == (answer.status, names(answer.value), answer.missing)
        assert [2] == api("queues?page=1").value["missing_processes"]
        assert [2] == api("overview").value["missing_processes"]
        assert ["a", "b"] == [row["name"] for row in api("vhosts").value]
        assert "2" == api("vhosts").missing
        assert [2] == api("definitions").value["missing_processes"]
        check = api("health/checks/alarms")
        assert (503, "process 2 of virtual hosts does not answer") == (
            check.status,
            check.value["reason"],
        )
        assert (200, 503) == (api("queues/a").status, api("queues/b").status)
        assert "process 2 of virtual hosts does not answer" == api("queues/b").value["reason"]
        assert 503 == api("connections/none").status
        code, text = ctl(running, "list_connections")
        assert 0 == code
        assert "without the virtual hosts of process 2" in text
    wait_until(lambda: api("queues").missing is None)
    assert [("a", "q"), ("b", "q")] == names(api("queues").value)
    os.kill(pid_of(running, 1), signal.SIGKILL)
    wait_until(lambda: api("queues").missing == "1")
    wait_until(lambda: [("a", "q"), ("b", "q")] == names(api("queues").value))
    running.wait_for("process 1 of virtual hosts has ended")
    assert 1 == sum("process 2 of virtual hosts does not answer" in line for line in running.lines)


def test_long_lists_do_not_pass_as_a_whole(running: Running, api: API) -> None:
    """A page of a long list is asked of each process up to its end only, and the whole list is in order."""
    for vhost in ("a", "b"):
        with connect(running, vhost) as connection:
            channel = connection.channel()
            for number in range(1500):
                channel.queue_declare(f"{number:04}", exclusive=True)
            whole = api("queues?sort=name&columns=name").value
            assert len(whole) == 1500
            page = api("queues?page=3&page_size=500&sort=name&columns=name").value
            assert whole[1000:1500] == page["items"]
        wait_until(lambda: not api("queues").value)


def scraped(port: int, path: str = "/metrics") -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    assert len(lines) == len(set(lines)), "a family or a sample is there twice"
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_metrics_are_those_of_all_processes(running: Running, api: API, metrics_port: int) -> None:
    """Each process has its samples, with a label; without one that does not answer there are those of the others."""
    declare(api, "a", "q1", "q2")
    declare(api, "b", "q")
    found = scraped(metrics_port)
    assert [0, 2, 1] == [found[f'rabbitmq_queues{{process="{number}"}}'] for number in range(3)]
    assert 1 == len([name for name in found if name.startswith("rabbitmq_identity_info")])
    assert [1, 1] == [found[f'leveret_process_up{{process="{number}"}}'] for number in (1, 2)]
    each = scraped(metrics_port, "/metrics/per-object")
    assert 0 == each['rabbitmq_queue_messages_ready{process="2",vhost="b",queue="q"}']
    some = scraped(metrics_port, "/metrics/detailed?family=queue_coarse_metrics&vhost=b")
    (name,) = [name for name in some if name.startswith("rabbitmq_detailed_queue_messages_ready")]
    assert 'process="2"' in name
    with stopped(running, 2):
        found = scraped(metrics_port)
        assert [1, 0] == [found[f'leveret_process_up{{process="{number}"}}'] for number in (1, 2)]
        assert [2] == [
            value for name, value in found.items() if name.startswith("rabbitmq_queues{") and value
        ]


class Watched:
    """The events of a front, as a page takes them."""

    def __init__(self, running: Running, query: str = "") -> None:
        self._api = API(running)
        self._answer = self._api.opened(f"leveret/events?topics=overview,queues{query}")
        self.overview: dict[str, Any] = {}
        self.queues: dict[tuple[str, str], int] = {}

    def until(self, is_there: Callable[["Watched"], bool]) -> None:
        """Read events until something is so."""
        deadline = time.monotonic() + 30
        while not is_there(self):
            assert time.monotonic() < deadline, (self.overview, self.queues)
            line = self._answer.readline().decode()
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: ") and name == "overview":
                self.overview = json.loads(line[6:])
            elif line.startswith("data: "):
                self._take(json.loads(line[6:]))

    def _take(self, event: dict[str, Any]) -> None:
        if "columns" in event:
            self.queues.clear()
            self._ready = event["columns"].index("messages_ready")
        self.queues |= {(row[0], row[1]): row[self._ready] for row in event["rows"]}
        for key in event.get("gone", ()):
            del self.queues[tuple(key)]

    def close(self) -> None:
        self._api.close()


def test_events_are_those_of_all_processes(running: Running, api: API) -> None:
    """The page shows the queues of all processes, of changes, and of a process that does not answer."""
    declare(api, "a", "q")
    with connect(running, "b") as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        watched, of_b = Watched(running), Watched(running, "&vhost=b")
        with closing(watched), closing(of_b):
            watched.until(lambda seen: len(seen.queues) > 0)
            assert {("a", "q"): 0, ("b", "q"): 0} == watched.queues
            watched.until(lambda seen: seen.overview.get("objects", {}).get("queues") == 2)
            assert (1, 14) == (
                watched.overview["objects"]["connections"],
                watched.overview["objects"]["exchanges"],
            )
            of_b.until(lambda seen: {("b", "q"): 0} == seen.queues)
            channel.basic_publish("", "q", b"message")
            watched.until(lambda seen: seen.queues["b", "q"] == 1 and seen.overview["messages_ready"] == 1)
            assert 204 == api("queues/a/q", "DELETE").status
            watched.until(lambda seen: [("b", "q")] == list(seen.queues))
            with stopped(running, 2):
                watched.until(lambda seen: not seen.queues and seen.overview.get("missing_processes") == [2])
            watched.until(lambda seen: [("b", "q")] == list(seen.queues))


def test_alarms_are_those_of_the_node(running: Running, api: API) -> None:
    """An alarm of one process blocks the publishers of all, and one that has ended has none."""
    assert 200 == api("leveret/memory-watermark", "PUT", {"absolute": 6_000_000_000}).status
    _, text = ctl(running, "status", process=2)
    assert "Memory high watermark: 3.0000 gb" in text
    with connect(running, "a") as connection:
        channel = connection.channel()
        states: list[bool] = []
        connection.add_on_connection_blocked_callback(lambda *_: states.append(True))
        connection.add_on_connection_unblocked_callback(lambda *_: states.append(False))

        def sees(*expected: bool) -> bool:
            connection.process_data_events(0.1)
            return list(expected) == states

        assert 0 == ctl(running, "set_vm_memory_high_watermark", "absolute", "1", process=2)[0]
        wait_until(lambda: 503 == api("health/checks/alarms").status)
        channel.basic_publish("", "q", b"message")
        wait_until(lambda: sees(True))
        assert api("nodes").value[0]["mem_alarm"]
        assert 0 == ctl(running, "set_vm_memory_high_watermark", "absolute", "3000000000", process=2)[0]
        wait_until(lambda: sees(True, False))
        assert 0 == ctl(running, "set_vm_memory_high_watermark", "absolute", "1", process=2)[0]
        wait_until(lambda: 503 == api("health/checks/alarms").status)
        channel.basic_publish("", "q", b"message")
        wait_until(lambda: sees(True, False, True))
        os.kill(pid_of(running, 2), signal.SIGKILL)
        wait_until(lambda: sees(True, False, True, False))
    wait_until(lambda: api("queues").missing is None)


def test_a_transfer_is_that_of_one_process(running: Running, api: API) -> None:
    """Two transfers in two processes have two numbers, by each of which the front finds the one that is meant."""
    found = {}
    for vhost in ("a", "b"):
        declare(api, vhost, "q", "other")
        moved = api(f"leveret/queues/{vhost}/q/move", "POST", {"destination": "other"})
        assert moved.status < 300, moved
        found[vhost] = moved.value["id"]
    assert found["a"] != found["b"]
    for vhost, number in found.items():
        assert vhost == api(f"leveret/transfers/{number}").value["vhost"]
