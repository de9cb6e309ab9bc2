from pamqp import commands, frame

from bench.bulk import Bulk
from bench.client import Confirms, publish_frames
from bench.transactions import CONFIRMS, TITLES, arrived, factors, parser, table, turns


class Read(Bulk):
    def __init__(self, octets: bytes) -> None:
        self.rest, self.sent, self.confirmed = octets, 0, 0
        self._confirms = Confirms()

    def read(self) -> None:
        """Have nothing more to read."""


def test_what_has_arrived_is_counted():
    """Deliveries and `commit-ok` are reported, confirms are counted, and a part of a frame waits for the rest."""
    methods = [
        commands.Basic.Deliver("a", 1, False, "", "q"),
        commands.Tx.CommitOk(),
        commands.Basic.Ack(7, True),
    ]
    octets = b"".join(frame.marshal(method, 1) for method in methods) + publish_frames("q", b"x")[-9:]
    client = Read(octets + octets[:9])

    assert (1, True) == arrived(client)
    assert (7, octets[:9]) == (client.confirmed, client.rest)


def test_each_way_is_run_on_each_broker_in_every_round():
    """Rounds hold all ways on all brokers, and another broker begins in the next round."""
    found = list(turns(["leveret", "rabbitmq"], 3))

    assert {
        (number, way, name) for number in (1, 2, 3) for way in TITLES for name in ("leveret", "rabbitmq")
    } == set(found)
    assert 3 * 2 * len(TITLES) == len(found)
    assert ["leveret", "rabbitmq", "leveret"] == [
        next(name for at, _, name in found if at == n) for n in (1, 2, 3)
    ]


def test_factors_are_taken_within_rounds():
    """A factor is that of two rates of the same round, so that a slow minute of the machine meets both."""
    assert [100.0, 50.0] == factors([1000.0, 100.0], [10.0, 2.0])


def rates(**brokers: float) -> dict[tuple[str, str], list[float]]:
    """Two rounds, the second twice as fast, in which confirms are 2, 4 and 8 times as fast as the other ways."""
    return {
        (way, name): [base * 2**at, base * 2 ** (at + 1)]
        for name, base in brokers.items()
        for at, way in enumerate(TITLES)
    }


def test_the_table_has_medians_and_factors():
    """Medians have the factor by which confirms are faster beside them, and with both brokers their ratio."""
    lines = table(rates(leveret=100.0, rabbitmq=50.0), ["leveret", "rabbitmq"]).splitlines()
    figures = [line[34:].split() for line in lines]

    assert ["leveret", "confirms", "x", "rabbitmq", "confirms", "x", "x", "rabbitmq"] == figures[0]
    assert ["150", "8.0", "75", "8.0", "2.00"] == figures[1]
    assert ["1,200", "1.0", "600", "1.0", "2.00"] == figures[1 + list(TITLES).index(CONFIRMS)]
    assert ["250.0", "250.0"] == figures[-1]


def test_the_table_of_one_broker_compares_it_with_itself_alone():
    """Without RabbitMQ there is no column for it."""
    lines = table(rates(leveret=100.0), ["leveret"]).splitlines()

    assert ["150", "8.0"] == lines[1][34:].split()
    assert "rabbitmq" not in lines[0]


def test_a_run_by_default_takes_less_than_two_minutes():
    """The measuring itself leaves room for starting both brokers."""
    options = parser().parse_args([])

    assert options.rounds * options.seconds * len(TITLES) * len(options.brokers) <= 90
