import asyncio
import dataclasses
import re
from datetime import UTC, datetime

import pytest
from samples.made_rows import Made, quiet, row

from bench.demo_export import LEAST, Demo
from leveret.analytics import overview, report, site
from leveret.analytics.findings import CRITICAL, GOOD, IDLE, WARNING, duration, words
from leveret.analytics.job import run
from leveret.analytics.reading import Input

MADE = report.Made("leveret analyze all", datetime(2026, 11, 24, tzinfo=UTC), ["Node: here"])
NASTY = (
    "<script>window.ran=1</script>",
    '"><img src=x onerror=window.ran=1>',
    "{{ 7*7 }}",
    "../../../etc/passwd",
    "javascript:window.ran=1",
    "x" * 255,
    "\u202e\x00",
)


def overview_of(spark, folder, seed):
    """Return the overview of a small fleet: ten minutes of twelve queues, by a broker with its clock moved on."""
    asyncio.run(Demo(folder / "in", folder / "data", minutes=10, queues=LEAST, step=5, seed=seed).run())
    return run(overview.JOB, Input(spark, folder / "in", folder / "out"), folder / "out" / "overview", quiet)


@pytest.fixture(scope="module")
def demo(spark, tmp_path_factory):
    """The overview of a small fleet, and where its pages are."""
    folder = tmp_path_factory.mktemp("demo")
    page = overview_of(spark, folder, 1)
    site.write(folder / "out", page, [], {}, MADE)
    return page, folder / "out"


def the_troubles_are(page):
    """Assert that the eight troubles of the fleet are found, and nothing else."""
    assert {
        ("unserved", CRITICAL, ("/", "invoices.pdf")),
        ("unserved", CRITICAL, ("/", "ledger.post")),
        ("repeated", CRITICAL, ("/", "webhooks.out")),
        ("behind", CRITICAL, ("/", "images.resize")),
        ("dead_letters", WARNING, ("/", "imports.parse")),
        ("fan_out", WARNING, None),
        ("alarm", WARNING, None),
        ("restart", WARNING, None),
        *(("unread", WARNING, ("/", f"notices.{name}")) for name in ("audit", "mobile", "partners")),
    } == {(each.kind, each.level, each.queue) for each in page.findings}
    assert 11 == len(page.findings)


def test_the_troubles_of_the_demo_are_named(demo):
    """The eight troubles are found once each, and nothing else; a retry queue and held messages are none."""
    the_troubles_are(demo[0])


@pytest.mark.parametrize("seed", [2, 3])
def test_the_troubles_of_other_loads_are_named(spark, tmp_path, seed):
    """Another load has the same troubles and no other."""
    the_troubles_are(overview_of(spark, tmp_path, seed))


def test_a_queue_tells_its_mode_its_latency_and_what_it_holds(demo):
    """The page of a queue has its confirm mode, the latency of its messages, and those that are held."""
    page, folder = demo
    queues = {row["queue"]: row for row in page.queues}

    def text(name):
        return (folder / "queues" / f"{site.slug('rabbit@shop-1', '/', name)}.html").read_text()

    assert {
        "ledger.post": "consumer-ack",
        "payments.settle": "consumer-ack",
        "prices.live": "consumer-ack-light",
        "imports.parse": "standard",
    }.items() <= {name: row["mode"] for name, row in queues.items()}.items()
    assert queues["ledger.post"]["promised"] > 100
    assert "publishes that wait for an ack" in text("ledger.post")
    assert queues["reminders.send"]["held"] > 100
    assert "held until their time" in text("reminders.send")
    assert 0 < queues["images.resize"]["p50_us"] <= queues["images.resize"]["p99_us"]
    assert "latency, 99 % within" in text("images.resize")


def test_the_overview_says_them_and_leads_to_their_charts(demo):
    """Each finding is a sentence on the page, with a link to an anchor of a page that exists."""
    page, folder = demo
    text = (folder / "index.html").read_text()
    said = re.findall(r'<a class="what" href="([^"]*)">([^<]*)</a>', text)

    assert {
        "Queue invoices.pdf has lost its consumers",
        "Queue webhooks.out delivers a message again and again",
        "The consumers of queue images.resize are too slow",
        "Nobody reads what exchange notices fans out",
        "Node rabbit@shop-1 was restarted",
        "Node rabbit@shop-1 raised the memory alarm",
        "Publishers wait for queue ledger.post, which has lost its consumers",
        "Queue imports.parse dead-letters messages",
    } == {title for _, title in said}
    for address, _ in said:
        target, _, anchor = address.partition("#")
        assert f'id="{anchor}"' in (folder / target).read_text()
    assert {row["queue"] for row in page.queues} == set(
        re.findall(r'<a href="queues/[^"]*">([^<]*)</a></td><td data-sort', text)
    )


def test_every_link_of_the_pages_leads_somewhere(demo):
    """The pages of queues and nodes exist, and lead back."""
    _, folder = demo
    pages = [folder / "index.html", *folder.glob("queues/*.html"), *folder.glob("nodes/*.html")]

    assert 1 + LEAST + 1 == len(pages)
    for page in pages:
        for address in re.findall(r'href="([^"#]+)', page.read_text()):
            target = (page.parent / address).resolve()
            assert target.exists() or "assets" in target.parts, address


def test_a_restart_is_one_with_its_time(demo):
    """The restart was planned, and its length is the time between the last row before it and the first after."""
    page, _ = demo
    (restart,) = [each for each in page.findings if each.kind == "restart"]

    assert re.search(r"stopped at 2026-11-24 14:07:\d\d \(shutdown\); \d\d s until it was back", restart.text)
    assert 2 == len(page.boots)


def test_what_changed_is_measured_against_the_time_before(demo):
    """The consumers that were lost deliver nothing in the second half."""
    page, _ = demo
    (stopped,) = [
        each for each in page.changes if (each["queue"], each["what"]) == ("invoices.pdf", "delivered/s")
    ]

    assert stopped["before"] > 1
    assert 0 == stopped["after"]


def queue(name, seconds, **values):
    """Rows of a queue at these times; a value may be a function of the time."""
    for second in seconds:
        fields = {key: value(second) if callable(value) else value for key, value in values.items()}
        yield row("queue_interval", second, queue=name, vhost="/", **fields)


@pytest.fixture(scope="module")
def judged(spark, tmp_path_factory):
    """Findings about queues with one peculiarity each, as kind -> queues, and the levels of all."""
    ten = range(0, 605, 5)
    rows = [
        *queue("well", ten, pub=lambda s: s, delivered=lambda s: s, acked=lambda s: s, consumers=1),
        *queue("idle", range(0, 605, 60)),
        # 500 messages at once, worked off
        *queue("burst", ten, pub=lambda s: 500 * (s >= 100), delivered=lambda s: max(0, min(500, s - 100)),
               ready=lambda s: max(0, 600 - s) if s >= 100 else 0, consumers=1),
        # behind for five minutes, and caught up
        *queue("caught up", ten, pub=lambda s: 3 * min(s, 400), delivered=lambda s: min(2 * s, 1200) if s > 0 else 0,
               ready=lambda s: 3 * min(s, 400) - min(2 * s, 1200), consumers=1),
        # redelivered once, all at a time, as after a restart
        *queue("once", ten, pub=lambda s: s, delivered=lambda s: s + 50 * (s >= 300), redelivered=lambda s: 50 * (s >= 300),
               consumers=1),
        *queue("stuck", ten, pub=lambda s: s, delivered=lambda s: min(s, 50), ready=lambda s: max(0, s - 50), unacked=50,
               consumers=1),
        # the worker is away for half a minute at the end, which may be a deployment
        *queue("away", ten, pub=lambda s: s, delivered=lambda s: min(s, 575), ready=lambda s: max(0, s - 575),
               consumers=lambda s: int(s <= 570)),
        *queue("deleted", range(0, 100, 5), pub=lambda s: s, ready=lambda s: s),
    ]  # fmt: skip
    nodes = [row("node_interval", second) for second in ten]
    events = [
        row("event", 0, kind="start", name="0.2.0"),
        row("event", 10, kind="alarm_raised", name="memory"),
        row("event", 70, kind="alarm_cleared", name="memory"),
    ]
    exchanges = [
        row(
            "exchange_interval",
            second,
            vhost="/",
            exchange="void",
            type="direct",
            pub_in=second,
            unroutable_dropped=second,
        )
        for second in (5, 600)
    ]
    tables = {"queue_interval": rows, "node_interval": nodes, "event": events, "exchange_interval": exchanges}
    return run(overview.JOB, Made(spark, tables), tmp_path_factory.mktemp("judged"), quiet)


def test_peculiarities_that_are_no_trouble_are_not_reported(judged):
    """A burst, a single redelivery, a moment without a worker and a deleted queue are no findings; others are."""
    assert {
        ("stalled", CRITICAL, ("/", "stuck")),
        ("behind", WARNING, ("/", "caught up")),
        ("alarm", WARNING, None),
        ("lost", WARNING, None),
    } == {(each.kind, each.level, each.queue) for each in judged.findings}


def test_each_queue_has_a_level(judged):
    """The level of a queue is that of its worst finding; one in which nothing happened is idle."""
    levels = {each["queue"]: each["level"] for each in judged.queues}

    assert {"well": GOOD, "idle": IDLE, "stuck": CRITICAL, "caught up": WARNING, "burst": GOOD} == {
        name: levels[name] for name in ("well", "idle", "stuck", "caught up", "burst")
    }


def test_an_alarm_says_how_long_publishers_were_blocked(judged):
    """An alarm has its begin, end and length."""
    (alarm,) = [each for each in judged.findings if each.kind == "alarm"]

    assert "publishers were blocked from 2026-11-21 07:20:10 to 2026-11-21 07:21:10, for 60 s." == alarm.text


def test_the_figures_of_a_node_by_its_queues_count_the_time_covered(spark):
    """Without rows of the node a backlog without a row, and a rate beside a restart, are what they were."""
    rows = [
        *queue("busy", [*range(0, 31, 5), 31], boot_id="a", pub=lambda s: 10 * s, ready=1),
        *queue("busy", range(44, 62, 5), boot_id="b", pub=lambda s: 10 * (s - 44), ready=1),
        *queue("still", [0, 5], boot_id="a", ready=7),
        *queue("still", [44, 49], boot_id="b", ready=7),
    ]

    made = overview.compute(Made(spark, {"queue_interval": rows}))["timeline"].orderBy("bin").collect()

    assert [(8, pytest.approx(10.0))] * len(made) == [(each["ready"], each["published"]) for each in made]
    assert 7 + 3 == len(made)


def finding(kind, **values):
    """A row of the table of findings."""
    empty = dict.fromkeys(("detail", "until_ms", "came", "went", "vhost", "queue", "amount"))
    return empty | {"kind": kind, "level": CRITICAL, "node": "n", "from_ms": 0} | values


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            finding("unserved", vhost="/", queue="q", amount=1.0, came=0.0),
            "Queue q has lost its consumers: no worker since 1970-01-01 00:00:00; 1 message waiting, 0 came since.",
        ),
        (
            finding("restart", until_ms=7000, amount=7.0),
            (
                "Node n ended without being stopped: a crash or a kill at 1970-01-01 00:00:00; "
                "7 s until it was back at 1970-01-01 00:00:07."
            ),
        ),
        (
            finding("behind", vhost="v", queue="q", until_ms=60_000, amount=3000.0, came=5.0, went=2.0),
            (
                "The consumers of queue q (v) are too slow: from 1970-01-01 00:00:00 to 1970-01-01 00:01:00 "
                "5 messages came and 2 were delivered; the backlog reached 3,000. It is recovering."
            ),
        ),
        (
            finding("unread", vhost="/", queue="q", amount=2.0, came=2.0),
            "Nobody reads queue q: it had no consumer at any time; 2 messages arrived, 2 waiting.",
        ),
    ],
)
def test_findings_are_sentences(row, sentence):
    """A finding says what, when and how much."""
    assert sentence == words(row).sentence


def test_durations_are_in_words():
    """Seconds, minutes and hours."""
    assert ["1.3 ms", "90 s", "5 min", "3.0 h"] == [duration(each) for each in (0.0013, 90, 300, 3 * 3600)]


def named(name):
    """The overview of one queue and node of this name, with every kind of finding about it."""
    key = {"node": name, "vhost": name, "queue": name}
    counts = dict.fromkeys(("pub", "delivered", "redelivered", "acked", "ready", "unacked", "consumers"), 1)
    found = [
        words(finding(kind, **key, until_ms=1, amount=1.0, came=1.0, went=1.0, detail=f"[{quoted(name)}]"))
        for kind in (
            "unserved",
            "stalled",
            "repeated",
            "behind",
            "alarm",
            "restart",
            "fan_out",
            "unread",
            "lost",
        )
    ]
    return site.OverviewPage(
        title="Overview",
        lead="",
        facts=[],
        sections=[],
        findings=found,
        queues=[
            dict(**key, **counts, level=CRITICAL, worst=1, expired=0, rejected=0, dropped=0, dead_lettered=0, held=1, promised=1,
                mode="standard", t_from_delta=0, p50_us=1, p99_us=2, pub_rate=1.0, delivered_rate=1.0,
                capacity=1.0, requeued=0)
        ],
        history=[dict(**key, **counts, bin=0, seconds=5, step_us=5_000_000)],
        timeline=[
            {"node": name, "bin": 0, "seconds": 5, "published": 1.0, "delivered": 1.0, "confirmed": 1.0, "acked": 1.0, "cpu": 0.1, "ready": 1,
                "unacked": 1, "mem_used": 1, "mem_limit": 2, "connections": 1, "consumers": 1, "disk_free": 1, "alarms": 0}
        ],
        changes=[dict(**key, what="published/s", before=1.0, after=2.0, factor=2.0)],
        boots=[{"node": name, "boot_id": str(at), "from_ms": at, "until_ms": at} for at in (0, 1)],
        published=1,
        delivered=1,
        ready=1,
    )  # fmt: skip


def test_a_time_without_the_node_is_a_gap_of_its_queues(tmp_path):
    """A queue that had no row keeps its level and did nothing; while its node was away there is nothing to show."""
    page = named("q")
    page = dataclasses.replace(
        page, timeline=[page.timeline[0] | {"bin": each} for each in (0, 5000, 15_000)]
    )

    found = site._Site(tmp_path, page, MADE)._filled("q", page.history)

    assert [(1, 1), (1, 0), None, (1, 0)] == [each and (each["ready"], each["pub"]) for each in found]


def quoted(name):
    """Return a name as JSON."""
    return '"' + "".join(f"\\u{ord(each):04x}" for each in name) + '"'


@pytest.mark.parametrize("name", NASTY)
def test_names_cannot_break_a_page_or_leave_the_output(name, tmp_path):
    """Whatever a queue is called, its page lies in its folder, and its name is text on all of them."""
    site.write(tmp_path / "out", named(name), [], {}, MADE)
    files = sorted(path.relative_to(tmp_path / "out") for path in tmp_path.rglob("*") if path.is_file())

    assert ["index.html", "nodes", "queues"] == [path.parts[0] for path in files]
    assert all(re.fullmatch(r"[a-z0-9-]+\.html", path.name) for path in files)
    for path in files:
        text = (tmp_path / "out" / path).read_text()
        assert "<script>" not in text
        assert "<img" not in text
        assert "49" not in re.findall(r"<h1>(.*?)</h1>", text)[0]
        assert not re.search(r"""(?:href|src)=["']?javascript:""", text)


def test_objects_have_different_files():
    """Names that look alike have pages of their own."""
    names = [("n", "/", "a b"), ("n", "/", "a-b"), ("n", "/a", "b"), ("n", "/", "A B")]

    assert len(names) == len({site.slug(*each) for each in names})
