"""One run of the paper's experiment, with something else in PerfTest's place."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from samples.paper_runs import made_plan

from bench import brokers, loads, paper_run, perftest
from bench.brokers import Broker
from bench.paper_plan import LINES
from bench.paper_run import TrialError, generate, logged, measure
from bench.perftest import PerfTestError
from leveret import __version__

PERF_TEST = """
import sys, pathlib
target = sys.argv[sys.argv.index("-o") + 1]
what = sys.argv[1]
print(sys.argv)
if what == "hangs":
    import time
    time.sleep(60)
titles = [f"{each} (msg/s)" for each in ("published", "returned", "confirmed", "nacked", "received")]
names = ("min", "median", "75th p.", "95th p.", "99th p.")
titles += [f"{name} {kind} latency (us)" for kind in ("consumer", "confirm") for name in names]
rows = [[second, 100, "", 90, 0, 80, *[7] * 10] for second in (1.0, 2.0, 3.0, 4.0)]
lines = [",".join(["id", "time (s)", *titles])] + [",".join(map(str, ["t", *row])) for row in rows]
pathlib.Path(target).write_text("\\n".join(lines) + "\\n")
sys.exit(3 if what == "fails" else 0)
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Puts a script in PerfTest's place that its first argument directs."""
    script = tmp_path / "perf_test.py"
    script.write_text(PERF_TEST)
    monkeypatch.setattr(paper_run, "LOOK", 0.01)

    def does(what):
        monkeypatch.setattr(perftest, "command_line", lambda *_: [sys.executable, str(script), what])

    return does


@pytest.fixture
def started(monkeypatch):
    """Every process that is started from here on."""
    processes = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: processes.append(popen(*a, **k)) or processes[-1]
    )
    return processes


@pytest.fixture
def broker(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    log = tmp_path / "output.log"
    log.write_text("it said this\n")
    yield SimpleNamespace(process=process, log=log, port=1)
    process.kill()
    process.communicate(timeout=30)


def test_several_perf_tests_run_at_once(stand_in, broker, tmp_path):
    """Several PerfTests at once have their flags and their samples each."""
    stand_in("works")
    ticks = []

    parts = generate(tmp_path, broker, [["-e", "x"], ["-e", "y"]], 4, tmp_path, lambda: ticks.append(1))

    assert [4, 4] == [len(part) for part in parts]
    assert ticks
    assert "'-e', 'y'" in (tmp_path / "perf-test-1.log").read_text()


def test_a_perf_test_that_fails_is_reported(stand_in, broker, tmp_path):
    """A PerfTest that fails has its exit code and its last line in the error."""
    stand_in("fails")

    with pytest.raises(PerfTestError, match=r"ended with 3: \['"):
        generate(tmp_path, broker, [[]], 4, tmp_path, lambda: None)


def test_a_perf_test_that_hangs_is_ended(stand_in, broker, started, tmp_path, monkeypatch):
    """A PerfTest that hangs is ended at its time, and no process is left behind."""
    stand_in("hangs")
    monkeypatch.setattr(perftest, "GRACE", -1.9)

    with pytest.raises(PerfTestError, match="did not end"):
        generate(tmp_path, broker, [[], []], 2, tmp_path, lambda: None)
    assert [-9, -9] == [process.returncode for process in started]


def test_who_stops_the_run_ends_perf_test(stand_in, broker, started, tmp_path):
    """Ctrl-C leaves none behind either."""
    stand_in("hangs")

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, broker, [[], []], 30, tmp_path, stop)
    assert [-9, -9] == [process.returncode for process in started]


def test_a_broker_that_ends_ends_the_run(stand_in, broker, tmp_path):
    """A broker's end ends the run at once, without waiting for PerfTest to notice."""
    stand_in("hangs")
    broker.process.kill()
    broker.process.wait()

    with pytest.raises(PerfTestError, match="the broker ended: it said this"):
        generate(tmp_path, broker, [[]], 30, tmp_path, lambda: None)


def test_what_a_broker_counted_is_read_from_its_log(tmp_path):
    """Whole numbers of both lines; milliseconds and seconds are none."""
    log = tmp_path / "output.log"
    log.write_text(
        "INFO storage: commits=4 written=3 early=2 bytes=5 paged=0 flushes=8 slowest_commit_ms=1.5\n"
        "INFO totals: published=9 delivered=8 acked=7 cpu_seconds=1.25\n"
    )
    stopped = Broker("leveret", 1, None, 1, 0.0, "", log)

    assert {
        "commits": 4,
        "written": 3,
        "early": 2,
        "bytes": 5,
        "paged": 0,
        "flushes": 8,
        "published": 9,
        "delivered": 8,
        "acked": 7,
    } == logged(stopped)
    log.write_text("")
    assert {} == logged(stopped)


def test_a_run_is_made_with_a_broker_of_its_own(stand_in, tmp_path):
    """Records of a real broker that nobody loaded: which it was, what it cost, and PerfTest's seconds."""
    stand_in("works")
    plan = made_plan(lines=["default"], queues=(16,))
    before = time.time_ns() // 1_000_000

    run, samples, cost = measure(plan, plan.trials[0], tmp_path, lambda _: None)

    assert ("leveret", "standard", "commit", 16, 1) == (run.broker, run.mode, run.sync, run.queues, run.block)
    assert run.version == __version__
    assert before <= run.start_ts
    assert [(t, 200.0, 180.0, 160.0, 7) for t in (1.0, 2.0, 3.0, 4.0)] == [
        (each.t_s, each.published, each.confirmed, each.received, each.c_p50) for each in samples
    ]
    assert ("default", 200, 2, 800) == (cost.line, cost.window, cost.generators, cost.messages)
    assert cost.counters["commits"] > 0


def test_a_line_with_tables_runs_the_baseline(stand_in, tmp_path):
    """The paper's baseline is a broker with RabbitMQ's tables; a second attempt has its number and a name of its own."""
    stand_in("works")
    plan = made_plan(lines=["paper-baseline"], queues=(1,))

    run, _, cost = measure(plan, plan.trials[0], tmp_path, lambda _: None, 2)

    assert ("leveret", "200ms+tables", 2) == (run.broker, run.sync, run.rep)
    assert run.run_id == plan.run_id(plan.trials[0], 2)
    assert "storage.commit_interval=200ms storage.early_confirm=false" in cost.settings
    assert cost.counters["commits"] > 0


def test_plugins_and_tables_are_those_of_the_line(monkeypatch, tmp_path):
    """RabbitMQ gets a line's plugins and a port for them, Leveret the program that has the tables."""
    calls = {}
    monkeypatch.setattr(brokers, "start", lambda name, *_, **options: calls.setdefault(name, options))

    paper_run.started(LINES["rabbitmq-plugins"], tmp_path)
    paper_run.started(LINES["late-tables"], tmp_path)

    assert calls["rabbitmq"]["plugins"] == ("rabbitmq_management", "rabbitmq_top")
    assert calls["rabbitmq"]["rabbitmq"][0].startswith("management.tcp.port = ")
    assert calls["leveret"]["program"] == ("-m", "bench.paper_baseline")
    assert calls["leveret"]["plugins"] == ()


def test_a_run_that_fails_leaves_no_record(stand_in, tmp_path, monkeypatch):
    """A failure of any part, here of a PerfTest, is the same kind of error and leaves no record."""
    stand_in("fails")
    monkeypatch.setattr(loads, "prepare", lambda *_: [[]])
    plan = made_plan(lines=["default"], queues=(1,))

    with pytest.raises(TrialError, match="ended with 3"):
        measure(plan, plan.trials[0], tmp_path, lambda _: None)
