"""Records of a sweep, made up for tests."""

import msgspec

from bench.paper_plan import LINES, Plan, shuffled
from bench.paper_records import PLAN, TABLES, BenchCost, BenchRun, BenchSample


def made_plan(
    lines=("default", "paper-standard", "consumer-ack"), queues=(1, 2), windows=(200,), blocks=1, seed=5
):
    """Return a plan of runs of four seconds, the first and the last of which do not count."""
    trials = shuffled(seed, lines, queues, windows, blocks)
    return Plan("sweep", seed, 4, 1.0, 1.0, "2.22.1", "abc", blocks, trials)


def made_run(plan, trial, rate=1000.0, *, counters=None, other=0.0, nacked=0.0, git="abc", attempt=1):
    """Return the result of `measure` for a run at a steady rate; its two seconds that do not count are slower."""
    line, run_id = LINES[trial.line], plan.run_id(trial, attempt)
    run = BenchRun(
        run_id=run_id,
        git=git,
        host="here",
        cpu="2 x some",
        kernel="6",
        broker=line.broker,
        version="1",
        mode=line.mode,
        sync=line.sync,
        queues=trial.queues,
        producers_q=2,
        consumers_q=3,
        ch_prod=2,
        ch_cons=3,
        size=1500,
        persistent=True,
        block=trial.block,
        rep=attempt,
        order_in_block=trial.order,
        start_ts=1_800_000_000_000 + trial.number * 1000 + attempt - 1,
        dur_s=4.0,
    )
    latencies = {f"{kind}_p{percent}": 2000 for kind in "cl" for percent in (50, 75, 95, 99)}
    samples = [
        BenchSample(
            run_id=run_id,
            t_s=float(second),
            **dict.fromkeys(("published", "confirmed", "received"), rate if second in {2, 3} else rate / 10),
            returned=0.0,
            nacked=nacked,
            **latencies,
        )
        for second in (1, 2, 3, 4)
    ]
    cost = BenchCost(
        run_id=run_id,
        line=line.name,
        window=trial.window,
        prefetch=200,
        generators=1,
        settings="",
        messages=4000,
        cpu_s=0.2,
        client_cpu_s=0.4,
        other=other,
        write_bytes=8_000_000,
        wchar=9_000_000,
        flushes=None,
        counters={"commits": 40, "early": 2000} if counters is None else counters,
    )
    return run, samples, cost


def write(folder, plan, runs):
    """Write results of `made_run` to a directory, as lines of one file for each table, with the plan."""
    encoder = msgspec.json.Encoder()
    kinds = zip((BenchRun, BenchSample, BenchCost), zip(*runs, strict=True), strict=True)
    for kind, rows in kinds:
        place = folder / TABLES[kind]
        place.mkdir(parents=True)
        flat = [each for row in rows for each in (row if isinstance(row, list) else [row])]
        (place / "all.jsonl").write_bytes(encoder.encode_lines(flat))
    (folder / PLAN).write_bytes(encoder.encode(plan))
