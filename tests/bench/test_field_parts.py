from typing import Any

from bench.field_parts import Part, entries, plan


def part(key: str, value: Any, product: str = "1") -> dict[str, Any]:
    names = key.split(" ")[1].split(",")
    return {"key": key, "value": value, "known": {name: {"product": f"{name} {product}"} for name in names}}


def test_each_round_begins_with_another_broker():
    """A plan has each workload once a round, the brokers in rotation, and then the searches of each broker."""
    parts = plan(["a", "b"], ["w"], 2, [1, 30])

    assert [
        Part("rate", ("a", "b"), "w", 1),
        Part("rate", ("b", "a"), "w", 2),
        Part("flushed", ("a",)),
        Part("highest", ("a",), number=1),
        Part("highest", ("a",), number=30),
        Part("flushed", ("b",)),
        Part("highest", ("b",), number=1),
        Part("highest", ("b",), number=30),
    ] == parts
    assert len(parts) == len({each.key for each in parts})


def test_cases_are_measured_of_each_broker_that_has_more_than_rates():
    """A peer with another protocol takes part in the rounds only."""
    parts = plan(["a", "b"], ["w"], 1, [], ["c"], rates_only=["b"])

    assert [Part("rate", ("a", "b"), "w", 1), Part("flushed", ("a",)), Part("case", ("a",), "c")] == parts


def test_a_workload_that_a_broker_lacks_has_no_rate():
    """A round without one of its brokers counts for the others; a case is shown as it was measured."""
    found = entries([part("rate a,b w 1", {"a": 1.0}), part("case a c 0", "7/s")], ["a", "b"], ["w"])

    assert ({"w": 1.0}, {}) == (found["a"]["rates"], found["b"]["rates"])
    assert {"c": "7/s"} == found["a"]["cases"]


def test_a_part_keeps_its_key_in_every_order():
    """The brokers of a run that goes on may be named in another order."""
    assert Part("rate", ("a", "b"), "w", 1).key == Part("rate", ("b", "a"), "w", 1).key


def test_records_of_several_runs_become_one():
    """Rates are medians over the rounds, a part that was measured twice counts once, and what is missing is left out."""
    found = entries(
        [
            part("rate a,b w 1", {"a": 1.0, "b": 5.0}),
            part("rate a,b w 1", {"a": 2.0, "b": 6.0}, "2"),
            part("rate a,b w 2", {"a": 4.0, "b": 8.0}, "2"),
            part("flushed a  0", "yes", "2"),
            part("highest a  30", {"rate": 9.0, "limited": False}, "2"),
        ],
        ["a", "b"],
        ["w", "x"],
    )

    highest = {"30": {"rate": 9.0, "limited": False}}
    assert {
        "a": {"product": "a 2", "flushed": "yes", "highest": highest, "rates": {"w": 3.0}},
        "b": {"product": "b 2", "flushed": "?", "highest": {}, "rates": {"w": 7.0}},
    } == found


def test_a_round_takes_the_time_of_all_its_brokers():
    """A part that would not end in time is not begun."""
    assert 2 * Part("rate", ("a",), "w", 1).seconds(6, 4) == Part("rate", ("a", "b"), "w", 1).seconds(6, 4)
    assert Part("highest", ("a",), number=1).seconds(6, 4) > Part("flushed", ("a",)).seconds(6, 4)
