import pytest

from bench.ladder import FIRST, NAMES, PUBLISHED, parser, ratio, rungs, table, turns


def test_each_rung_asks_for_more_than_the_one_before():
    """The rungs are those of the published ladder, in its order, each with the flags of its promise."""
    steps = rungs(200)
    flags = {step.name: step.flags.split() for step in steps}

    assert list(PUBLISHED) == [step.name for step in steps]
    assert ["-x1", "-y1", "-a"] == flags["no-acks"]
    assert ["-x1", "-y1"] == flags["acks"]
    assert ["-x1", "-y1", "-c200"] == flags["confirms"]
    assert [*flags["confirms"], "-f", "persistent", "-ad", "false"] == flags["persistence"]
    assert ["persistence"] == [step.name for step in steps if step.kept]


def test_the_modes_are_run_only_where_there_are_confirms():
    """On the first two rungs consumer-ack is what standard is, so it is not measured again."""
    found = [(rung.name, name) for _, rung, name in turns(rungs(200), NAMES, 1)]

    assert [
        ("no-acks", "leveret"),
        ("no-acks", "rabbitmq"),
        ("acks", "leveret"),
        ("acks", "rabbitmq"),
    ] == found[:4]
    assert [("confirms", name) for name in NAMES] == found[4:8]
    assert [("persistence", name) for name in NAMES] == found[8:]


def test_another_broker_begins_in_the_next_round():
    """The order of the brokers turns by one each round."""
    firsts = {}
    for number, rung, name in turns(rungs(200), NAMES, 5):
        if rung.name == "confirms":
            firsts.setdefault(number, name)

    assert [*NAMES, NAMES[0]] == list(firsts.values())


@pytest.mark.parametrize(
    ("over", "under", "expected"),
    [
        ({1: 50.0, 2: 80.0, 3: 10.0}, {1: 100.0, 2: 100.0, 3: 100.0}, 0.5),
        ({1: 50.0, 3: 20.0}, {1: 100.0, 2: 100.0}, 0.5),
        ({1: 50.0}, {2: 100.0}, None),
        ({}, {1: 100.0}, None),
    ],
)
def test_a_ratio_is_the_median_of_the_rounds_that_have_both(over, under, expected):
    """Rates of different rounds are never divided by each other."""
    assert expected == ratio(over, under)


def test_the_published_ratios_are_those_of_its_rates():
    """1 to 0.714 to 0.582 to 0.105 stand beside what is measured."""
    rows = [line.split() for line in table({}, []).splitlines()[1:]]

    assert [["1.000"], ["0.714"], ["0.582"], ["0.105"]] == [row[2:] for row in rows]


def test_the_modes_are_beside_the_first_rung_of_leveret():
    """A mode has no first rung of its own; what was not measured is a dash."""
    rates = {
        (FIRST, "leveret"): {1: 1000.0, 2: 2000.0},
        ("confirms", "leveret"): {1: 500.0, 2: 1000.0},
        ("confirms", "ack"): {1: 900.0, 2: 1800.0},
    }
    rows = [line.split()[3:] for line in table(rates, ["leveret", "ack"]).splitlines()[1:]]

    assert ["1,500", "1.000", "-", "-"] == rows[0]
    assert ["-", "-", "-", "-"] == rows[1]
    assert ["750", "0.500", "1,350", "0.900"] == rows[2]


def test_brokers_are_known_by_name():
    """A column that does not exist is refused before anything starts."""
    with pytest.raises(SystemExit):
        parser().parse_args(["--brokers", "artemis"])
