"""The choice between Spark and Sail, and Sail's session. That its tables are Spark's is shown in `test_cluster.py`."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from made_rows import histogram, row

from leveret.analytics import engine, running, sail
from leveret.analytics.asked import Asked, state_of
from leveret.analytics.locations import Remote, size_of
from leveret.analytics.names import AUTO, SAIL, SPARK
from leveret.analytics.objective import DEFAULT
from leveret.analytics.reading import InputError
from leveret.analytics.warm import WarmSession

ROOT = Path(__file__).parents[2]
EVERYTHING = (None, None, None, None)


def asked(source, output, *names, wanted=AUTO, master=None, settings=(), follow=None):
    """A request."""
    return Asked(
        names or ("latency",), source, output, EVERYTHING, DEFAULT, master, dict(settings), follow, "", wanted
    )


def lines(folder, *more):
    """An input of one table, whose first lines are as the broker writes them."""
    place = folder / "in" / "latency_hist" / "dt=2026-11-21" / "hour=07" / "node=here"
    place.mkdir(parents=True)
    rows = [
        row("latency_hist", second, scope="node", metric="confirm", mode="standard", **histogram([5, 900]))
        for second in (0, 5)
    ]
    text = [*(json.dumps(each, separators=(",", ":")) for each in rows), *more]
    (place / "latency_hist-1-0.jsonl").write_text("".join(f"{each}\n" for each in text))
    return folder / "in"


def analyze(*words, **environment):
    """`leveret analyze` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "leveret", "analyze", *map(str, words)],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, timeout=200, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ""),
        ({"wanted": SAIL}, ""),
        ({"wanted": SPARK}, "asked for"),
        ({"master": "spark://head:7077"}, "settings"),
        ({"settings": {"spark.driver.memory": "6g"}}, "settings"),
        ({"follow": 30.0}, "follows"),
        ({"names": ("latency", "compact")}, "compact"),
        ({"output": Remote("hdfs://head/out")}, "hdfs://head/out"),
        ({"directory": "in put"}, "in put"),
        ({"directory": "100%"}, "100%"),
        ({"directory": "[a]"}, "[a]"),
    ],
)
def test_sail_takes_what_it_can_do(tmp_path, values, expected):
    """Requests without settings of Spark's, with plain paths on this machine, are for Sail; others are for Spark."""
    names, output = values.pop("names", ()), values.pop("output", tmp_path / "out")
    source = tmp_path / values.pop("directory", "in")
    source.mkdir()

    found = engine.unsuitable(asked(source, output, *names, **values))

    assert (expected in found) if expected else not found


def test_large_inputs_and_missing_packages_are_for_spark(tmp_path, monkeypatch):
    """By default Sail is not used for an input that is large, nor where a package is missing."""
    source = lines(tmp_path)
    monkeypatch.setattr(sail, "MOST_BYTES", 100)

    assert "large" in engine.unsuitable(asked(source, tmp_path / "out"))
    assert not engine.unsuitable(asked(source, tmp_path / "out", wanted=SAIL))

    monkeypatch.setattr(sail, "PACKAGES", ("no_such_package",))

    assert "no_such_package" in engine.unsuitable(asked(source, tmp_path / "out"))
    with pytest.raises(sail.SailError, match="no_such_package"), sail.session():
        pass


@pytest.mark.parametrize("look", [size_of, lambda place: len(state_of(place))])
def test_what_vanishes_while_files_are_looked_at_is_no_error(tmp_path, monkeypatch, look):
    """A broker that runs renames and removes files of the input, and directories of hours: the others are found."""
    source = lines(tmp_path)
    expected = look(source)
    hours = source / "latency_hist" / "dt=2026-11-21"
    for hour in ("05", "06", "08"):
        (hours / f"hour={hour}").mkdir()
        (hours / f"hour={hour}" / "latency_hist-3-0.jsonl").write_text("")
    stat = Path.stat

    def removed_before(path, **options):
        if path.parent.parent == hours and path.parent.name != "hour=07":
            for other in hours.glob("hour=0[568]"):
                shutil.rmtree(other)
        return stat(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", removed_before)
        assert 0 < expected == look(source)


def test_what_sail_cannot_do_is_handed_over(tmp_path, monkeypatch):
    """Any error of Sail's means Spark, unless Sail was asked for by name; an input without a table is an error."""
    source = lines(tmp_path)

    def fail(*_arguments):
        raise raised

    monkeypatch.setattr(engine, "run_stored", fail)
    for raised in (ValueError("no such function"), RuntimeError("it is over")):
        with pytest.raises(running.HandedOverError, match=str(raised)):
            running.by_sail(asked(source, tmp_path / "out"), None, lambda _text: None)
        with pytest.raises(running.SailFailedError, match=f"Sail failed: {raised}"):
            running.by_sail(asked(source, tmp_path / "out", wanted=SAIL), None, lambda _text: None)
    raised = InputError("no table")
    with pytest.raises(InputError, match="no table"):
        running.by_sail(asked(source, tmp_path / "out"), None, lambda _text: None)


def test_a_server_that_cannot_use_sail_starts_spark(monkeypatch):
    """The session that `--serve` keeps is Spark's where Sail cannot be used, unless Sail was asked for by name."""
    told = []

    def refuse(**_options):
        raise sail.SailError("not here")

    monkeypatch.setattr(sail, "session", refuse)
    monkeypatch.setattr(WarmSession, "_start_spark", lambda _self: told.append("started"))

    WarmSession(None, {}, None, told.append).start()
    assert ["not using Sail: not here", "started"] == told
    with pytest.raises(sail.SailError, match="not here"):
        WarmSession(None, {}, None, told.append, SAIL).start()
    assert ["not using Sail: not here", "started"] == told


def test_a_request_for_sail_by_name_is_never_spark_s(tmp_path, monkeypatch):
    """A request that asked for Sail by name, of a command or to a server, has an error where Sail cannot do it."""
    told = []
    source = tmp_path / "in put"
    source.mkdir()
    request = asked(source, tmp_path / "out", wanted=SAIL)
    monkeypatch.setattr("leveret.analytics.running.session", lambda *_values, **_more: told.append("started"))
    monkeypatch.setattr(WarmSession, "_start_spark", lambda _self: told.append("started"))
    warm = WarmSession(None, {}, None, told.append)
    warm._spark = object()
    refused = f"only Spark can use {source}", os.EX_UNAVAILABLE

    assert refused == running.run(request, told.append, progress=False)
    assert refused == warm.run(request, told.append)
    warm._engine = SPARK  # by an earlier request
    assert warm.run(request, told.append) == ("the server runs Spark by now", os.EX_UNAVAILABLE)
    assert [] == told


def test_a_scratch_directory_that_sail_would_not_find_again_is_for_spark(tmp_path, monkeypatch):
    """Sail is not used where its scratch directory has an escape of URLs in its name: it would read no rows."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a%20b"))

    assert "a%20b" in engine.unsuitable(asked(lines(tmp_path), tmp_path / "out"))


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_server_that_ends_does_not_start_spark(tmp_path, monkeypatch, is_cancelled):
    """A request that Sail cannot do is Spark's, but not if it failed because the server was told to end."""
    told = []
    warm = WarmSession(None, {}, None, told.append, SAIL)
    warm._spark = object()
    monkeypatch.setattr(WarmSession, "_start_spark", lambda _self: told.append("started"))
    monkeypatch.setattr("leveret.analytics.warm.once", lambda *_arguments: told.append("done"))

    def hand_over(*_arguments):
        if is_cancelled:
            warm._is_cancelled = True
        raise running.HandedOverError("it failed")

    monkeypatch.setattr("leveret.analytics.warm.by_sail", hand_over)
    request = asked(lines(tmp_path), tmp_path / "out")

    if is_cancelled:
        assert ("it failed", os.EX_TEMPFAIL) == warm.run(request, told.append)
        assert [] == told
    else:
        warm._spark = type(
            "Session", (), {"catalog": type("Catalog", (), {"clearCache": staticmethod(lambda: None)})}
        )
        assert warm.run(request, told.append) is None
        assert ["starting Spark in place of Sail: it failed", "started", "done"] == told


def test_an_engine_that_does_not_start_is_not_used(monkeypatch):
    """Any error of the start means that Sail cannot be used, and leaves no server and no remote session behind."""

    def refuse(_port):
        raise ImportError("pandas is too old\nsecond line")

    monkeypatch.setattr(sail, "close_door", refuse)

    with pytest.raises(sail.SailError, match=r"^pandas is too old$"), sail.session():
        pass
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_a_session_has_no_proxy_and_does_not_end_while_it_is_idle():
    """The session of `--serve` outlasts hours without a request, and a proxy of the user's is not asked for it."""
    program = (
        "import grpc\n"
        "from leveret.analytics import sail\n"
        "made = grpc.insecure_channel\n"
        "def noted(address, options=(), **more):\n"
        "    print(dict(options)['grpc.client_idle_timeout_ms'])\n"
        "    return made(address, options=options, **more)\n"
        "grpc.insecure_channel = noted\n"
        "with sail.session() as spark:\n"
        "    print(spark.range(3).count())\n"
        "import os\n"
        "print(int(os.environ['SAIL_SPARK__SESSION_TIMEOUT_SECS']) > 86_400)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        env=os.environ | {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""},
    )  # fmt: skip

    assert [str(2**31 - 1), "3", "True"] == done.stdout.split(), done.stderr


@pytest.fixture
def listening():
    """A socket that listens on loopback, and a connection to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        yield listener, client, accepted


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a door of Linux")
def test_a_closed_door_lets_nobody_else_in(listening):
    """New connections are refused; the one that was there goes on."""
    listener, client, accepted = listening
    address = listener.getsockname()

    sail.close_door(address[1])

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    client.sendall(b"still here")
    assert b"still here" == accepted.recv(100)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a door of Linux")
def test_a_second_connection_means_that_sail_is_not_used(listening):
    """If somebody else has connected before the door was closed, that is an error."""
    listener, _, _ = listening
    address = listener.getsockname()

    with (
        socket.create_connection(address),
        listener.accept()[0],
        pytest.raises(sail.SailError, match="somebody else"),
    ):
        sail.close_door(address[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a door of Linux")
def test_a_second_connection_counts_if_its_client_has_closed_it(listening):
    """Somebody else's query may go on after its client has closed the connection: that is an error, too."""
    listener, _, _ = listening
    address = listener.getsockname()

    with socket.create_connection(address) as other, listener.accept()[0]:
        other.shutdown(socket.SHUT_WR)
        with pytest.raises(sail.SailError, match="somebody else"):
            sail.close_door(address[1])


def test_other_systems_have_no_such_door(monkeypatch):
    """Sail is not used by default where its socket cannot be closed."""
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(sail.SailError, match="every user"):
        sail.close_door(1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_scratch_files(tmp_path, monkeypatch, number):
    """A signal ends a command in the midst of Sail's work; the rows that were stored are removed."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def be_ended(*_arguments):
        assert 1 == len(list(scratch.iterdir()))
        os.kill(os.getpid(), number)

    monkeypatch.setattr("leveret.analytics.running.deliver", be_ended)
    before = signal.getsignal(number)

    with pytest.raises(SystemExit) as ended:
        running.run(asked(lines(tmp_path), tmp_path / "out"), lambda _text: None, progress=False)
    assert (128 + number, [], before) == (ended.value.code, list(scratch.iterdir()), signal.getsignal(number))


def test_a_report_needs_no_java(tmp_path):
    """A command makes its report with Sail where that is installed, and starts no Java."""
    output = tmp_path / "out"

    done = analyze("latency", "--input", lines(tmp_path), "--output", output, JAVA_HOME="/nowhere")

    assert (0, False) == (done.returncode, "Spark" in done.stderr), done.stderr
    assert "Rows: latency_hist 2" in (output / "latency" / "report.html").read_text()


def test_lines_of_another_form_are_not_for_sail(tmp_path):
    """A command that asks for Sail by name fails if only Spark can judge a line, and says so."""
    source = lines(tmp_path, "half a li")

    done = analyze("latency", "--input", source, "--output", tmp_path / "out", "--engine", "sail")

    assert os.EX_DATAERR == done.returncode
    assert "latency_hist has lines that only Spark's parser can judge" in done.stderr


def test_lines_that_the_fast_parser_does_not_take_are_for_sail_all_the_same(tmp_path):
    """A name with a brace, which the fast parser does not take, is read by Sail, beside rows that are kept."""
    source = lines(tmp_path)
    one = row("latency_hist", 5, scope="queue", name="a}b", metric="deliver", **histogram([7]))
    kept = []
    for more in ([], [json.dumps(one, separators=(",", ":"))]):
        place = source / "latency_hist" / "dt=2026-11-21" / "hour=07" / "node=here"
        (place / "latency_hist-2-0.jsonl").write_text("".join(f"{each}\n" for each in more))
        done = analyze("latency", "--input", source, "--output", tmp_path / "out", "--engine", "sail")
        assert 0 == done.returncode, done.stderr
        assert f"Rows: latency_hist {2 + len(more)}" in (tmp_path / "out/latency/report.html").read_text()
        kept.append(sorted((tmp_path / "out" / ".parsed").rglob("*.ends")))

    assert 1 == len(kept[0])
    assert kept[0] == kept[1]


def test_a_command_needs_no_place_for_kept_rows(tmp_path):
    """Rows are read all the same where they cannot be kept, as another user's are there or the disk is full."""
    output = tmp_path / "out"
    output.mkdir()
    (output / ".parsed").write_text("of another program")

    done = analyze("latency", "--input", lines(tmp_path), "--output", output, "--engine", "sail")

    assert 0 == done.returncode, done.stderr
    assert "Rows: latency_hist 2" in (output / "latency" / "report.html").read_text()


@pytest.mark.parametrize("words", [("--master", "local[1]"), ("--conf", "a=b"), ("--follow",), ("compact",)])
def test_sail_by_name_excludes_what_it_cannot_do(tmp_path, words):
    """Options of Spark's and jobs that only Spark runs are refused beside `--engine sail`."""
    done = analyze("latency", *words, "--engine", "sail", "--input", tmp_path, "--output", tmp_path / "out")

    assert os.EX_USAGE == done.returncode
    assert "--engine sail cannot be combined with" in done.stderr
