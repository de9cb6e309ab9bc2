import pytest
from samples.made_rows import Made, histogram, row

from leveret.analytics import latency
from leveret.analytics.objective import DEFAULT, Objective, ObjectiveError, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("99.9% in 100ms", Objective()),
        (" 99 % within 2s ", Objective(0.99, 2_000_000)),
        ("50%in500us", Objective(0.5, 500)),
        (DEFAULT.words(), DEFAULT),
    ],
)
def test_objectives_are_a_share_in_a_time(text, expected):
    """An objective is a percentage and a time with its unit; its words can be read again."""
    assert (expected.us, pytest.approx(expected.share)) == (parse(text).us, parse(text).share)


@pytest.mark.parametrize(
    "text", ["", "99.9%", "100ms", "100% in 100ms", "0% in 1s", "99% in 0ms", "99 in 1s", "99% in 5"]
)
def test_what_is_no_objective_is_refused(text):
    """The error repeats the text and shows what can be written."""
    with pytest.raises(ObjectiveError, match=r"is not an objective; write for example 99\.9% in 100ms"):
        parse(text)


def test_the_burn_rate_is_that_of_the_objective(spark):
    """Of a hundred samples five are later than 50 ms: 95 % in 50 ms is just met, 99 % burns five times as fast."""
    rows = [row("latency_hist", scope="node", metric="confirm", **histogram([10_000] * 95 + [90_000] * 5))]
    for objective, burn in ((Objective(0.95, 50_000), 1), (Objective(0.99, 50_000), 5), (DEFAULT, 0)):
        made = Made(spark, {"latency_hist": rows})
        made.objective = objective

        (found,) = latency.compute(made)["objective"].collect()

        assert (pytest.approx(burn), objective.words()) == (found["burn"], found["objective"])
