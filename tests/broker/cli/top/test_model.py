"""The state of the screen, and the questions to the API."""

import pytest
from samples.top_answers import answered, page, queue

from leveret.broker.cli.top.model import Answer, Broker, Model
from leveret.broker.cli.top.views import CHANNELS, CONNECTIONS, QUEUES


@pytest.fixture
def model():
    """A model with three pages of queues, 16 on each."""
    return answered(Model(), page(*(queue(f"q{at:02}", 48 - at) for at in range(16)), pages=3, found=48))


def table(model):
    return ["".join(text for text, _style in line) for line in model.table()]


def chosen(model):
    (line,) = ["".join(text for text, _style in line) for line in model.table() if line[0][1] == "cursor"]
    return line.split()[0]


def text(line):
    return "".join(text for text, _style in line)


def test_the_broker_sorts_filters_and_divides():
    """Only the items of one screen are asked for, and only their columns."""
    model = Model()
    model.narrow("ord")
    query = model.question().query

    assert {
        "page": "1",
        "page_size": "16",
        "sort": "messages_ready",
        "sort_reverse": "true",
        "name": "ord",
    }.items() <= query.items()
    assert "message_stats.publish_details.rate" in query["columns"].split(",")


def test_the_picture_at_eighty_by_twenty_four(model):
    """All lines of the terminal are used, none is wider than it."""
    lines = [*model.header("12:00:00", "2 s"), *model.table(), model.status()]

    assert 23 == len(lines)  # the last is that of the keys
    assert max(map(len, map(text, lines))) == 80
    assert "leveret top  rabbit@here  Leveret 0.2.0  up 1d02h            every 2 s  12:00:00" == text(
        lines[0]
    )
    assert " 1 Queues 10,000   2 Connections 3   3 Channels 4                     1-16 of 48" == text(
        lines[4]
    )
    assert (
        "NAME              VHOST READY▼ UNACKED   IN/S  OUT/S  ACK/S  CONS MEMORY STATE"
        == text(lines[5]).rstrip()
    )
    assert "q00               /         48       0     12      -      -     1  1.95k running" == text(
        lines[6]
    )
    assert "queue q00  vhost /  type classic  durable yes" == text(lines[-1]).rstrip()


def test_the_sorted_column_moves(model):
    """Numbers descend at first, texts ascend; the order begins at the first page again."""
    model.turn(1)
    model.sort_next(1)
    unacked = dict(model.question().query)
    model.sort_next(-2)
    vhost = dict(model.question().query)
    model.flip()

    assert ("messages_unacknowledged", "true", "1") == (
        unacked["sort"],
        unacked["sort_reverse"],
        unacked["page"],
    )
    assert ("vhost", "false") == (vhost["sort"], vhost["sort_reverse"])
    assert "true" == model.question().query["sort_reverse"]


def test_the_chosen_item_moves_over_pages(model):
    """Down from the last item is the next page, up from the first the one before; the ends stay."""
    model.move(-1)
    assert ("q00", False) == (chosen(model), model.is_outdated)
    for _ in range(15):
        model.move(1)
    assert ("q15", False) == (chosen(model), model.is_outdated)
    model.move(1)
    assert ("2", True) == (model.question().query["page"], model.is_outdated)
    answered(model, page(*(queue(f"p{at:02}") for at in range(16)), number=2, pages=3, found=48))
    assert "p00" == chosen(model)
    model.move(-1)
    answered(model, page(*(queue(f"q{at:02}") for at in range(16)), pages=3, found=48))
    assert "q15" == chosen(model)


def test_pages_are_turned_up_to_the_ends(model):
    """At an end the first or the last item is chosen."""
    model.turn(-1)
    assert "1" == model.question().query["page"]
    model.turn(9)
    assert "3" == model.question().query["page"]
    answered(model, page(queue("last"), number=3, pages=3, found=33))
    model.turn(1)
    assert "last" == chosen(model)
    model.go_first()
    assert "1" == model.question().query["page"]
    model.go_last()
    assert "3" == model.question().query["page"]


def test_a_list_that_became_shorter(model):
    """The broker's page counts, and the chosen item is one that exists; before the answer nothing is chosen."""
    model.go_last()
    answered(model, page(queue("only"), pages=1, number=1))
    assert ("1", "only") == (model.question().query["page"], chosen(model))
    model.move(5)
    assert "only" == chosen(model)


def test_each_list_keeps_its_order_and_filter(model):
    """Going to another and back changes nothing."""
    model.narrow("ord")
    model.show(CONNECTIONS)
    assert ("", CONNECTIONS) == (model.filter, model.question().view)
    model.sort_next(1)
    model.show_next(1)
    assert CHANNELS is model.view
    model.show_next(1)
    assert (QUEUES, "ord") == (model.view, model.filter)


def test_the_old_list_is_not_shown_under_a_new_title(model):
    """Until the answer comes there are no items; an answer to the old question changes the summary only."""
    old = model.question()
    model.show(CONNECTIONS)
    model.take(Answer(old, Broker({"node": "other"}, {}), page(queue("stray"))))

    assert 1 == len(model.table())
    assert [] == model.status()
    assert "other" in text(model.header("", "")[0])


def test_nothing_is_found(model):
    """The reason is told."""
    model.narrow("nix")
    answered(model, page())
    assert "No queues with “nix” in their name" == table(model)[1]
    assert text(model.header("", "")[4]).endswith("filter nix: 0")
    model.show(CONNECTIONS)
    answered(model, page())
    assert "There are no connections" == table(model)[1]


def test_a_broker_that_is_not_reachable(model):
    """The last figures stay, dimmed, and the line below says why; the next answer clears it."""
    model.fail("not reachable, trying again: unable to connect to the broker on var: it is not running")
    styles = {style for _text, style in model.table()[2]}

    assert {"dim"} == styles
    assert text(model.status()).startswith(
        "not reachable, trying again: unable to connect to the broker on var"
    )
    answered(model, page(queue("q")))
    assert text(model.status()).startswith("queue q")


def test_alarms_are_told(model):
    """Before everything but that the broker is not reachable."""
    answered(model, page(queue("q")), mem_alarm=True)

    (span,) = model.status()
    assert ("ALARM  publishers are blocked: memory 50.0 MiB (limit 4.00 GiB)", "alarm") == (
        span[0].rstrip(),
        span[1],
    )


def test_another_size_keeps_the_place(model):
    """A smaller terminal shows what stood at the top of the page."""
    model.go_last()
    model.resize(100, 16)

    assert ("5", "8") == (model.question().query["page"], model.question().query["page_size"])
    model.resize(1, 1)
    assert "1" == model.question().query["page_size"]
    model.resize(300, 2000)
    assert "500" == model.question().query["page_size"]


def test_names_cannot_steer_the_terminal():
    """Escape sequences in names of queues, filters and vhosts are shown as replacement characters."""
    model = answered(Model(), page(queue("\x1b[2Jgone", vhost="\x07")))
    lines = [*model.header("", ""), *model.table(), model.status()]

    assert not any("\x1b" in text(line) or "\x07" in text(line) for line in lines)
    assert "�[2Jgone" in table(model)[1]


def test_connections_and_channels_are_shown_by_their_clients():
    """The address of the peer, the name that the client gave, else its library; the number of a channel."""
    name = "10.0.0.1:40000 -> 10.0.0.2:5672"
    model = Model()
    model.show(CONNECTIONS)
    answered(
        model,
        page(
            {"name": name, "user_provided_name": "shop", "user": "ann", "connected_at": 1_700_000_000_000},
            {"name": name, "client_properties": {"product": "pika", "version": "1.3"}},
        ),
    )
    assert ["10.0.0.1:40000", "shop", "ann"] == table(model)[1].split()[:3]
    assert ["10.0.0.1:40000", "pika"] == table(model)[2].split()[:2]
    assert text(model.status()).startswith(f"connection {name}  since 2023-11-1")
    model.show(CHANNELS)
    answered(
        model, page({"name": f"{name} (3)", "number": 3, "transactional": True, "messages_uncommitted": 2})
    )
    assert "10.0.0.1:40000 (3)" == table(model)[1][:18]
    assert text(model.status()).rstrip().endswith("uncommitted 2")
