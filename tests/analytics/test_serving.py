"""The server of an output: its pages, its socket, and how it ends. Its jobs are a stand-in's: Spark is not needed."""

import asyncio
import contextlib
import http.client
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes.commands import execute

from leveret.analytics import asking
from leveret.analytics.asked import Asked
from leveret.analytics.asking import LONGEST, SOCKET, NoServerError, ask
from leveret.analytics.objective import DEFAULT
from leveret.analytics.scope import EVERYTHING
from leveret.analytics.served_files import HEADERS
from leveret.analytics.serving import LOCK, ServeError, Server

SECONDS = 20
"""Time for anything here to happen."""


class Worker:
    """Writes a page for each job, and fails as a test wants."""

    def __init__(self):
        self.ran = []
        self.failure = None
        self.hold = None
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self.is_stopped = False
        self.living = True

    def start(self):
        pass

    def takes(self, asked):
        return "the server has other Spark settings" if asked.settings else ""

    def run(self, asked, report_progress):
        self.ran.append(tuple(asked.names))
        self.begun.set()
        if self.hold is not None:
            assert self.hold.wait(SECONDS)
            if self.cancelled.is_set():
                return "Spark failed: cancelled", os.EX_SOFTWARE
        if isinstance(self.failure, Exception):
            raise self.failure
        for name in asked.names:
            page = asked.output / f"{name}.html"
            page.write_text(f"<p>{name}")
            report_progress(f"{name}: {page}")
        return self.failure

    def is_alive(self):
        return self.living

    def cancel(self):
        self.cancelled.set()
        if self.hold is not None:
            self.hold.set()

    def stop(self):
        self.is_stopped = True


class Served:
    """A server in this process: `port`, and `stop()`, which returns how it ended."""

    def __init__(self, loop, output, worker, lines):
        self.output, self.worker, self.lines = output, worker, lines
        self._loop = loop
        self.server = Server(output, worker, "127.0.0.1", 0, lines.append)
        self._running = loop.create_task(self.server.run(None))

    @property
    def port(self):
        return int(self.lines[0].rpartition(":")[2].strip("/"))

    async def ready(self):
        async with asyncio.timeout(SECONDS):
            while not self.lines and not self._running.done():
                await asyncio.sleep(0.01)
        if self._running.done():
            self._running.result()
        return self

    async def stop(self):
        self.server._stopping.set()
        return await self.ended()

    async def ended(self):
        return await asyncio.wait_for(asyncio.shield(self._running), SECONDS)

    async def get(self, path, host=None, method="GET"):
        def request():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
            with contextlib.closing(connection):
                connection.putrequest(method, path, skip_host=True)
                connection.putheader("Host", host or f"127.0.0.1:{self.port}")
                connection.endheaders()
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read()

        return await asyncio.to_thread(request)

    async def ask(self, *names, **values):
        lines = []
        failure = await asyncio.to_thread(ask, asked(self.output, *names, **values), lines.append)
        return failure, lines


def asked(output, *names, settings=(), directory=None, scope=EVERYTHING):
    directory = directory or output / "in"
    return Asked(names, directory, output, scope, DEFAULT, None, dict(settings), None, "analyze")


@pytest.fixture
async def serve(tmp_path):
    """Return a function that starts a server of an output."""
    started = []

    async def start(output=None, worker=None):
        output = output or tmp_path / "out"
        (output / "in" / "event").mkdir(parents=True, exist_ok=True)
        (output / "in" / "event" / "rows.jsonl").write_text("{}\n")
        served = await Served(asyncio.get_running_loop(), output, worker or Worker(), []).ready()
        started.append(served)
        return served

    yield start
    for each in started:
        await each.stop()


async def test_pages_have_headers_that_protect_them(serve):
    """Every answer forbids other origins, frames, and scripts that are not files of the report."""
    served = await serve()
    (served.output / "index.html").write_text("<p>overview")
    (served.output / "assets").mkdir()
    (served.output / "assets" / "pages.js").write_text("1")

    for path, kind, text in (
        ("/", "text/html; charset=utf-8", b"<p>overview"),
        ("/index.html", "text/html; charset=utf-8", b"<p>overview"),
        ("/assets/pages.js?x=1", "text/javascript; charset=utf-8", b"1"),
    ):
        status, headers, body = await served.get(path)
        assert (200, kind, text) == (status, headers["Content-Type"], body)
        assert HEADERS.items() <= dict(headers).items()
    status, headers, _ = await served.get("/missing.html")
    assert status == 404
    assert HEADERS.items() <= dict(headers).items()
    assert (await served.get("/", method="POST"))[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.html",
        "/%2e%2e/secret.html",
        "/..%2fsecret.html",
        "/a/../../secret.html",
        "//secret.html",
        "/link.html",
        "/folder/secret.html",
        "/.hidden.html",
        "/followed/.x/y.html",
        "/data.parquet",
        "/.serve.sock",
        "/.serve.lock",
        "/a%00.html",
        "/a\\b.html",
        "/%ff.html",
        "/in/event/rows.jsonl",
        "/latency",
    ],
)
async def test_only_files_of_the_report_are_served(path, serve, tmp_path):
    """Neither what lies outside of the output or is linked from there, nor data, nor what is hidden."""
    served = await serve()
    (tmp_path / "secret.html").write_text("secret")
    (served.output / "link.html").symlink_to(tmp_path / "secret.html")
    (served.output / "folder").symlink_to(tmp_path)
    (served.output / "a").mkdir()
    (served.output / ".hidden.html").write_text("secret")
    (served.output / "data.parquet").write_text("secret")

    assert (await served.get(path))[0] == 404


async def test_other_names_of_this_machine_are_refused(serve):
    """A page elsewhere that gives its own name the address of this machine reads nothing."""
    served = await serve()
    (served.output / "index.html").write_text("<p>overview")

    assert (await served.get("/", host="evil.example:80"))[0] == 421
    for host in ("localhost", f"localhost:{served.port}", "127.0.0.1", "[::1]:15693"):
        assert (await served.get("/", host=host))[0] == 200


async def test_jobs_are_run_for_a_command_with_the_same_output(serve):
    """The command gets the progress of its jobs, and the socket is its user's alone."""
    served = await serve()

    failure, lines = await served.ask("latency", "paging")

    assert failure is None
    assert [f"{name}: {served.output / name}.html" for name in ("latency", "paging")] == lines
    assert [("latency", "paging")] == served.worker.ran
    assert stat.S_IMODE((served.output / SOCKET).stat().st_mode) == 0o600


async def test_errors_of_a_job_are_those_of_the_command(serve):
    """A job's error comes with its exit code, an unexpected one as well, and the server goes on."""
    served = await serve()
    served.worker.failure = "no table latency_hist", os.EX_DATAERR
    assert ("no table latency_hist", os.EX_DATAERR) == (await served.ask("latency"))[0]
    served.worker.failure = RuntimeError("unexpected")
    assert ("failed: RuntimeError('unexpected')", os.EX_SOFTWARE) == (await served.ask("latency"))[0]
    served.worker.failure = None
    assert (await served.ask("latency"))[0] is None


async def test_requests_are_run_one_after_another(serve):
    """A second command waits for the jobs of the first."""
    served = await serve()
    served.worker.hold = threading.Event()
    first = asyncio.create_task(served.ask("latency"))
    await asyncio.to_thread(served.worker.begun.wait, SECONDS)
    second = asyncio.create_task(served.ask("paging"))
    served.worker.hold.set()

    assert [None, None] == [failure for failure, _ in await asyncio.gather(first, second)]
    assert [("latency",), ("paging",)] == served.worker.ran


async def test_other_settings_are_for_a_spark_of_the_commands_own(serve, tmp_path):
    """A request with other Spark settings, and one about another output, is not taken, with the reason."""
    served = await serve()

    with pytest.raises(NoServerError, match="other Spark settings"):
        await served.ask("latency", settings={"spark.driver.memory": "6g"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / SOCKET).symlink_to(served.output / SOCKET)
    with pytest.raises(NoServerError, match="this server is that of"):
        await asyncio.to_thread(ask, asked(tmp_path / "other", "latency"), print)


async def test_a_second_server_of_an_output_is_refused(serve):
    """The first goes on."""
    served = await serve()

    with pytest.raises(ServeError, match="is served by another process"):
        await Server(served.output, Worker(), "127.0.0.1", 0, print).run(None)
    assert (await served.ask("latency"))[0] is None


async def test_a_server_without_requests_ends(tmp_path):
    """After so long, which begins with the end of a request; without an address it serves no pages."""
    worker, told = Worker(), []
    server = Server(tmp_path, worker, None, 0, told.append, 0.5)
    running = asyncio.create_task(server.run(None))
    async with asyncio.timeout(SECONDS):
        while not (tmp_path / SOCKET).exists():
            await asyncio.sleep(0.01)
        worker.hold = threading.Event()
        asking_it = asyncio.create_task(asyncio.to_thread(ask, asked(tmp_path, "latency"), told.append))
        await asyncio.sleep(0.7)
        assert not running.done()
        worker.hold.set()
        assert await asking_it is None
        assert await running is None
    assert [f"latency: {tmp_path / 'latency.html'}"] == told
    assert worker.is_stopped
    assert not (tmp_path / SOCKET).exists()


async def test_a_port_that_is_taken_is_named(serve, tmp_path):
    """Nothing is left in the output then."""
    served = await serve()
    other = tmp_path / "other"
    other.mkdir()

    with pytest.raises(ServeError, match=f"cannot listen on 127.0.0.1:{served.port}: "):
        await Server(other, Worker(), "127.0.0.1", served.port, print).run(None)
    assert not (other / SOCKET).exists()


async def test_a_socket_that_was_left_is_replaced(serve, tmp_path):
    """That of a server that was killed is no server for commands, and not in the way of the next."""
    output = tmp_path / "out"
    output.mkdir()
    program = f"import socket; socket.socket(socket.AF_UNIX).bind({SOCKET!r})"
    subprocess.run([sys.executable, "-c", program], cwd=output, check=True, timeout=SECONDS)
    (output / LOCK).touch()
    with pytest.raises(NoServerError):
        ask(asked(output, "latency"), print)

    assert (await (await serve(output)).ask("latency"))[0] is None


async def test_an_output_without_a_server_is_known_at_once(tmp_path):
    """The command runs its jobs itself."""
    with pytest.raises(NoServerError):
        ask(asked(tmp_path, "latency"), print)


async def test_an_output_with_a_long_name_has_a_socket_as_well(serve, tmp_path):
    """Although systems allow about a hundred bytes."""
    output = tmp_path / ("x" * LONGEST)
    output.mkdir()

    assert (await (await serve(output)).ask("latency"))[0] is None


async def test_a_signal_ends_it_and_what_runs(serve):
    """The command that waits is told so, the one that is queued as well; the socket is gone and Spark stopped."""
    served = await serve()
    served.worker.hold = threading.Event()
    runs = asyncio.create_task(served.ask("latency"))
    await asyncio.to_thread(served.worker.begun.wait, SECONDS)
    waits = asyncio.create_task(served.ask("paging"))
    async with asyncio.timeout(SECONDS):
        while not served.server._thread._work_queue.qsize():
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await served.ended() is None
    for failure, _ in await asyncio.gather(runs, waits):
        assert failure is not None
        assert failure[1] in {os.EX_TEMPFAIL, os.EX_UNAVAILABLE}
    assert served.worker.cancelled.is_set()
    assert served.worker.is_stopped
    assert not (served.output / SOCKET).exists()
    assert [("latency",)] == served.worker.ran


async def test_a_server_without_spark_ends(serve):
    """If its Java was killed, the command is told, and the server ends with an error for whoever supervises it."""
    served = await serve()
    served.worker.living, served.worker.failure = False, ("Spark failed: gone", os.EX_SOFTWARE)

    failure, _ = await served.ask("latency")

    assert failure is not None
    assert ("Spark has ended; start again", os.EX_SOFTWARE) == await served.ended()


async def test_requests_of_another_version_are_refused(serve, monkeypatch):
    """A command of another version runs its jobs itself."""
    served = await serve()
    monkeypatch.setattr(asking, "to_json", lambda _asked: {"version": 99})

    with pytest.raises(NoServerError, match="another version"):
        await served.ask("latency")
    assert [] == served.worker.ran
    assert Path(served.output / SOCKET).exists()


async def test_a_command_with_a_server_needs_no_spark(serve):
    """`leveret analyze` asks the server of its output, and exits with the code of the jobs."""
    served = await serve()
    program = "import sys; sys.modules['pyspark'] = None; from leveret.analytics.command import main; main()"
    words = ["latency", "--input", str(served.output / "in"), "--output", str(served.output)]

    def command():
        done = execute([sys.executable, "-c", program, *words], timeout=SECONDS)
        return done.returncode, done.stderr

    code, told = await asyncio.to_thread(command)
    assert code == 0
    assert f"latency: {served.output / 'latency.html'}" in told
    served.worker.failure = "no table latency_hist", os.EX_DATAERR
    (served.output / "latency.html").unlink()
    code, told = await asyncio.to_thread(command)
    assert (os.EX_DATAERR, True) == (code, told.endswith("leveret analyze: no table latency_hist\n"))
