"""The HTTP listener: its answers, and that they delay nobody."""

import asyncio
import contextlib
import signal
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
from doubles.fakes import Client, Node, queue_declare
from grafana.exposition import Scraped
from processes.commands import execute
from processes.running import Running, command, environment, watched

from leveret.broker.http import late_server
from leveret.broker.metrics import http
from leveret.broker.metrics.http import STALL_SECONDS, Monitor
from leveret.broker.metrics.text import CONTENT_TYPE
from leveret.broker.network.gate import RESERVED_FILES
from leveret.broker.process.shares import Shares
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS

SOON = 10.0
WATCHED = ("--set", "prometheus.enabled=true")


@pytest.fixture
def node() -> Node:
    """A broker that clients may connect to."""
    node = Node()
    node.is_open = True
    node.loop.ticked = node.now()
    return node


@pytest.fixture
async def monitor(node) -> AsyncIterator[Monitor]:
    made = Monitor(node)
    sock = socket.create_server(("127.0.0.1", 0))
    made.address = sock.getsockname()
    await made.serve_socket(sock)
    yield made
    await made.stop()


@pytest.fixture
async def ask(monitor):
    """Send a request; returns status, text and content type of the answer."""
    async with aiohttp.ClientSession() as session:

        async def get(path: str, method: str = "GET") -> tuple[int, str, str]:
            url = f"http://127.0.0.1:{monitor.address[1]}{path}"
            async with session.request(method, url) as response:
                return response.status, await response.text(), response.headers["Content-Type"]

        yield get


async def test_metrics_may_tell_objects_apart(node):
    """`/metrics` is per object if so configured, as in RabbitMQ."""
    Client(node).declare("q")
    sock = socket.create_server(("127.0.0.1", 0))
    made = Monitor(node, per_object=True)
    await made.serve_socket(sock)
    try:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            found = Scraped([await answer.text()])
    finally:
        await made.stop()

    assert {(("queue", "q"), ("vhost", "/")): 0} == found.values("rabbitmq_queue_messages")


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/metrics/per-object",
        "/metrics/memory-breakdown",
        "/metrics/detailed?family=queue_coarse_metrics",
    ],
)
async def test_metrics_are_text_that_prometheus_reads(node, ask, path):
    """Each endpoint answers in the text format, with its content type."""
    Client(node).declare("q")
    status, text, kind = await ask(path)
    found = Scraped([text])
    (identity,) = found.values("rabbitmq_identity_info")
    endpoint = path.partition("?")[0].removeprefix("/metrics").removeprefix("/") or "aggregated"

    assert (200, CONTENT_TYPE) == (status, kind)
    assert (endpoint, node.node_name) == (
        dict(identity)["rabbitmq_endpoint"],
        dict(identity)["rabbitmq_node"],
    )
    assert ("python_info" in text) is (endpoint in {"aggregated", "per-object"})
    assert ("memory_other_system_bytes" in text) is (endpoint == "memory-breakdown")


async def test_what_the_system_says_of_the_process(ask):
    """Open files, their limit and processor time are those of this process."""
    with socket.socket():
        found = Scraped([(await ask("/metrics"))[1]])

        assert 3 < found.value("rabbitmq_process_open_fds") < found.value("rabbitmq_process_max_fds")
    assert 0 < found.value("leveret_cpu_seconds_total", mode="user") <= time.process_time() + 1


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", {"a", "b", "c"}),
        ("&vhost=other", {"c"}),
        ("&vhost=/", {"a", "b"}),
        ("&vhost=other&vhost=%2F", {"a", "b", "c"}),
        ("&vhost=nowhere", set()),
        ("&queue=^[ac]$", {"a", "c"}),
        ("&queue=", {"a", "b", "c"}),
        ("&family=connection_metrics&queue=b", {"b"}),
    ],
)
async def test_what_is_asked_for_in_detail(node, ask, query, shown):
    """Families, vhosts and a pattern for the names of queues are parsed as RabbitMQ does."""
    node.directory.add_vhost("other")
    node.users.set_permissions("guest", "other", ".*", ".*", ".*")
    client, other = Client(node), Client(node, vhost="other", port=50001)
    client.declare("a")
    client.declare("b")
    other.declare("c")

    status, text, _ = await ask(f"/metrics/detailed?family=queue_coarse_metrics{query}")

    found = Scraped([text]).values("rabbitmq_detailed_queue_messages")
    assert (200, shown) == (status, {dict(labels)["queue"] for labels in found})


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("queue=(", "Invalid 'queue' regex"),
        ("queue=a&queue=b", "Only one"),
        (f"queue={'a' * 600}", "too long"),
    ],
)
async def test_what_cannot_be_asked_for(ask, query, reason):
    """An invalid pattern, or several, is a bad request."""
    status, text, _ = await ask(f"/metrics/detailed?family=queue_coarse_metrics&{query}")

    assert (400, True) == (status, reason in text)


async def test_other_paths_and_methods(ask):
    """Other paths are not found, and methods that change something are not allowed."""
    assert 404 == (await ask("/"))[0]
    assert 405 == (await ask("/metrics", "POST"))[0]
    assert (200, "") == (await ask("/metrics", "HEAD"))[:2]


async def test_health(node, ask):
    """A broker is alive as long as its loop checks the clock, and ready from its start to its stop."""
    assert (200, '{"status": "ok"}') == (await ask("/healthz"))[:2]
    assert (200, '{"status": "ok"}') == (await ask("/readyz"))[:2]

    node.clock.now += STALL_SECONDS + TICK_SECONDS + 0.01
    status, text, _ = await ask("/healthz")
    assert (503, True) == (status, "the event loop is 5.0 s late" in text)

    node.is_stopping = True
    for path in ("/readyz", "/metrics"):
        status, text, _ = await ask(path)
        assert (503, True) == (status, "the broker is stopping" in text)
    node.is_stopping = node.is_open = False
    status, text, _ = await ask("/readyz")
    assert (503, True) == (status, "the broker is starting" in text)


async def test_alarms_are_no_reason_to_stay_away(node, ask):
    """A broker with an alarm is ready: publishers are blocked, but consumers are needed."""
    node.resource_monitor.memory.raised = True
    node.resource_monitor.report_full(True)

    assert 200 == (await ask("/readyz"))[0] == (await ask("/healthz"))[0]
    found = Scraped([(await ask("/metrics"))[1]])
    names = ("memory_used", "free_disk_space")
    assert [1, 1] == [found.value(f"rabbitmq_alarms_{name}_watermark") for name in names]
    assert node.alarm


async def test_nobody_is_sent_where_no_file_descriptors_are_left(node, ask):
    """A broker without file descriptors is not ready for new connections; existing ones and metrics are served."""
    node.gate.most_sockets = 0
    status, text, _ = await ask("/readyz")

    assert (503, True) == (status, "no file descriptors" in text)
    assert 200 == (await ask("/healthz"))[0]
    assert 1 == Scraped([(await ask("/metrics"))[1]]).value("rabbitmq_alarms_file_descriptor_limit")


async def test_scrapes_at_once_are_few(monitor, ask):
    """A request above the limit of concurrent scrapes is answered with 503."""
    monitor._scrapes = Shares(0, 0)

    assert (503, "too many scrapes at once") == (await ask("/metrics"))[:2]


# -- hostile clients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_line",
    [
        f"GET /metrics/detailed?family={'a' * 100_000} HTTP/1.1",
        f"GET /metrics/detailed?{'&'.join(['family=a'] * 900)} HTTP/1.1",
        f"GET /{'../' * 1000} HTTP/1.1",
        "GET /metrics/detailed?vhost=%00%ff&queue=%ff%00 HTTP/1.1",
        "\x00\xff" * 5000,
        "PRI * HTTP/2.0",
        "GET /metrics HTTP/9.9",
    ],
)
async def test_requests_that_nobody_sends(monitor, ask, caplog, request_line):
    """Incomplete requests are answered or cut without a log line, and the next one is answered."""
    reader, writer = await asyncio.open_connection(*monitor.address)
    with contextlib.suppress(ConnectionError):
        writer.write(request_line.encode("latin-1") + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), SOON)
        assert answer[:9] in {b"HTTP/1.1 ", b"HTTP/1.0 ", b""}
    writer.close()

    assert 200 == (await ask("/metrics"))[0]
    assert [] == caplog.records


async def test_many_connections_leave_descriptors_for_clients(monitor, ask):
    """Idle connections above the limit are closed, the oldest first; others are answered meanwhile."""
    opened = [await asyncio.open_connection(*monitor.address) for _ in range(3 * http.CONNECTIONS)]
    for _, writer in opened:
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET /metrics HT")

    assert 200 == (await ask("/metrics"))[0]
    assert http.CONNECTIONS + late_server.BACKLOG < RESERVED_FILES
    for reader, _ in opened[: len(opened) - http.CONNECTIONS]:
        with contextlib.suppress(ConnectionError):
            assert b"" == await asyncio.wait_for(reader.read(), SOON)
    assert len(monitor._runner.server.connections) <= http.CONNECTIONS
    for _, writer in opened:
        writer.close()


async def test_a_hundred_scrapes_at_once(node, monitor, ask):
    """Concurrent scrapes are answered, refused for now or cut, and afterwards everything is as before."""
    client = Client(node)
    for number in range(300):
        client.declare(f"q{number}")

    async def one() -> int:
        try:
            return (await ask("/metrics/per-object"))[0]
        except aiohttp.ClientError:
            return 0

    found = Counter(await asyncio.gather(*[one() for _ in range(100)]))

    assert found[200] >= 1
    assert {0, 200, 503} >= set(found)
    assert (200, 0) == ((await ask("/metrics"))[0], len(monitor._scrapes))


async def test_who_does_not_read_is_cut(node, monitor, ask, monkeypatch, caplog):
    """A scrape whose answer is not read holds one place for a limited time."""
    monitor._scrapes = Shares(1, 1)
    monkeypatch.setattr(http, "SCRAPE_SECONDS", 2.0)
    client = Client(node)
    for number in range(3000):
        client.send(queue_declare(f"queue-with-a-long-name-{number}"))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, monitor.address)
        await loop.sock_sendall(slow, b"GET /metrics/per-object HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(SOON):
            while not monitor._scrapes:
                await asyncio.sleep(0)
            monkeypatch.setattr(
                http, "SCRAPE_SECONDS", SOON
            )  # for those that are read, which take longer on a busy machine
            assert (503, "too many scrapes at once") == (await ask("/metrics"))[:2]
            while (await ask("/metrics"))[0] != 200:
                await asyncio.sleep(0.01)

    assert ["scrape of /metrics/per-object aborted: it took longer than 10 s"] == [
        record.getMessage() for record in caplog.records
    ]


async def test_others_run_between_two_pieces(node, ask):
    """Other tasks run about as often as a large answer has pieces while it is written."""
    client = Client(node)
    for number in range(2000):
        client.declare(f"q{number}")
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    other = asyncio.get_running_loop().create_task(count())
    status, text, _ = await ask("/metrics/per-object")
    other.cancel()

    assert 200 == status
    assert 2000 == len(Scraped([text]).values("rabbitmq_queue_messages"))
    assert rounds > 60


# -- the process -----------------------------------------------------------------------------------------------------


def address_of(line: str) -> str:
    return line.partition("started HTTP listener on ")[2].split()[0]


def test_the_broker_answers_until_it_has_stopped(tmp_path):
    """Metrics and health checks are there from the start on, by default, and the process ends as before."""
    with Running(tmp_path, *watched()) as running:
        address = address_of(running.wait_for("started HTTP listener"))
        running.wait_for("Server startup complete")
        for path in ("healthz", "readyz", "metrics", "metrics/per-object"):
            with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
                assert 200 == answer.status
                text = answer.read().decode()
        assert 1 == len(Scraped([text]).values("leveret_build_info"))
        code, _, err = running.stopped_by(signal.SIGTERM)

    assert (0, "") == (code, err)


def test_a_port_that_is_taken_is_no_reason_not_to_start(tmp_path):
    """A second broker starts without metrics, with a log line, if the default port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Running(tmp_path, *WATCHED, program=program_with_port(tmp_path, port)) as running:
            line = running.wait_for("no listener for metrics and health")
            running.wait_for("Server startup complete")
            code, _, err = running.stopped_by(signal.SIGTERM)

    assert f"cannot listen on 127.0.0.1:{port}: " in line
    assert (0, "") == (code, err)


def program_with_port(tmp_path, port: int) -> list[str]:
    """A broker whose default port is another one."""
    script = tmp_path / "other_port.py"
    script.write_text(
        "import functools\n"
        "from leveret.broker.cli import main as cli\nfrom leveret.broker.config import sections\n"
        f"sections.METRICS_PORT = {port}\n"
        f"sections.PrometheusConfig = functools.partial(sections.PrometheusConfig, port={port}, usual_port={port})\n"
        "cli.main()\n"
    )
    return [str(script)]


@pytest.mark.parametrize(("host", "wanted"), [("127.0.0.1", "port"), ("127.0.0.2", "ip")])
def test_a_place_that_was_asked_for_has_to_be_free(tmp_path, host, wanted):
    """A taken port is one line and 69 if the port, or the address with the default port, was configured."""
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        settings = (
            "listeners.tcp.1=127.0.0.1:0",
            f"data_dir={tmp_path / 'data'}",
            f"prometheus.tcp.port={port}" if wanted == "port" else f"prometheus.tcp.ip={host}",
        )
        words = [word for setting in settings for word in ("--set", setting)]
        program = ("-m", "leveret") if wanted == "port" else program_with_port(tmp_path, port)
        done = execute(command("serve", *words, program=program), cwd=tmp_path, timeout=30, env=environment())

    assert 69 == done.returncode
    text = f"leveret: cannot listen on {host}:{port}: address already in use (for metrics and health)"
    assert [text] == done.stderr.splitlines()
