"""Held messages in the API: looked at, released, cancelled and rescheduled."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, node_in, settle
from services.api import OPERATOR, Api

from leveret.broker.config.config import StorageConfig
from leveret.broker.queue import due_line
from leveret.storage.delayed import Window

HELD = "leveret/queues/%2F/q/held"
MESSAGES = "leveret/queues/%2F/q/messages"


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A broker with a queue that holds twenty messages, due each second, of which memory has a few."""
    monkeypatch.setattr(due_line, "Window", partial(Window, size=2))
    with node_in(request.param, tmp_path) as made:
        client = Client(made)
        client.declare("q", durable=True, arguments={"x-allow-hold": ("bool", True)})
        settle(made)
        for number in range(20):
            headers = {
                "n": ("signedint", number),
                "x-deliver-at": ("long", made.wall_clock() + 1000 * (number + 1)),
            }
            client.publish("q", b"%d" % number, headers=headers, delivery_mode=2)
        settle(made)
        yield made


def pass_time(node: Node, milliseconds: int) -> None:
    """Let time pass in steps, with the reads that are needed then."""
    for _ in range(10):
        node.pass_time(milliseconds // 10)
        settle(node)
    settle(node)


def queue(node: Node) -> Any:
    return node.vhosts["/"].queues["q"]


def act(node: Node, action: str, **body: Any) -> Any:
    return Api(node, OPERATOR).post(HELD, {"action": action, **body})


def dues(node: Node) -> list[int]:
    """Return the seconds until which the messages are held, by their numbers."""
    found = Api(node, OPERATOR).get(f"{MESSAGES}?state=held&count=1000")["messages"]
    assert {"held"} <= {each["state"] for each in found} | {"held"}
    by_number = {each["properties"]["headers"]["n"]: each["due"] for each in found}
    return [round((due - node.wall_clock()) / 1000) for _, due in sorted(by_number.items())]


def test_held_messages_are_looked_at(node):
    """The messages of a queue have those that it holds, with their times, and none is taken."""
    assert list(range(1, 21)) == dues(node)
    api = Api(node, OPERATOR)
    some = api.get(f"{MESSAGES}?where=headers.n%20%3E%2017&state=held")
    assert ["18", "19"] == [each["payload"] for each in some["messages"]]
    row = api.get("queues/%2F/q")
    assert (0, 20, 1000) == (row["messages"], row["messages_delayed"], row["next_due"] - node.wall_clock())


def test_a_message_held_beyond_all_calendars_is_explained(node):
    """A time that no calendar has is told by its year."""
    act(node, "reschedule", to=2**62, limit=1)
    found = Api(node, OPERATOR).get("leveret/explain/message/%2F/q/20?state=held")
    assert "the queue holds it until year 146140482" in found["lines"]


def test_a_rescheduled_message_is_delivered_at_its_new_time(node):
    """The time of chosen messages changes, wherever they are; a time that has passed releases them."""
    to = node.wall_clock() + 60_000
    answer = act(node, "reschedule", where="headers.n in (0, 19)", to=to)
    settle(node)
    assert (200, {"examined": 20, "matched": 2, "done": 2}) == (answer.status, answer.body)
    assert [60, *range(2, 20), 60] == dues(node)
    pass_time(node, 30_000)
    assert (2, 18) == (queue(node).held_count, queue(node).ready_count)
    act(node, "reschedule", to=5)
    settle(node)
    assert (0, 20) == (queue(node).held_count, queue(node).ready_count)


def test_a_released_message_is_delivered_now(node):
    """Chosen messages take their place in the queue at once, those that are due first."""
    answer = act(node, "release", limit=3)
    settle(node)
    assert 3 == answer.body["done"]
    assert (17, 3) == (queue(node).held_count, queue(node).ready_count)
    assert list(range(4, 21)) == dues(node)


def test_conditions_know_when_a_message_is_due(node):
    """`due` is the number of seconds until its time; a message that nobody holds has none."""
    found = Api(node, OPERATOR).get(f"{MESSAGES}?state=held&where=due%20%3C%202.5s")["messages"]
    assert ["0", "1"] == [each["payload"] for each in found]
    assert 3 == act(node, "release", where="due <= 3s").body["done"]
    settle(node)
    assert [] == Api(node, OPERATOR).get(f"{MESSAGES}?state=ready&where=due%20exists")["messages"]


def test_a_cancelled_message_is_gone(node):
    """Chosen messages are removed, and a kill does not bring them back."""
    answer = act(node, "cancel", where="headers.n >= 5")
    settle(node)
    assert 15 == answer.body["done"]
    assert [1, 2, 3, 4, 5] == dues(node)
    if isinstance(node, DiskNode):
        again = node.killed()
        again.read()
        assert 5 == queue(again).held_count
        pass_time(again, 30_000)
        assert (0, 5) == (queue(again).held_count, queue(again).ready_count)
        again.disk.close()


@pytest.mark.parametrize("action", ["move", "copy"])
def test_moved_and_copied_messages_keep_their_times(node, action):
    """Another queue holds chosen messages until the same times, whatever its settings, also after a kill."""
    Client(node).declare("other", durable=True)
    settle(node)
    answer = act(node, action, destination="other", where="headers.n >= 15")
    settle(node)
    assert 5 == answer.body["done"]
    left = 15 if action == "move" else 20
    again = node.killed() if isinstance(node, DiskNode) else node
    if again is not node:
        again.read()
    other = again.vhosts["/"].queues["other"]
    assert (left, 5) == (queue(again).held_count, other.held_count)
    pass_time(again, 15_900)
    assert (5, 0) == (other.held_count, other.ready_count)
    pass_time(again, 2_000)
    assert (3, 2) == (other.held_count, other.ready_count)
    if again is not node:
        again.disk.close()


def test_a_queue_gets_as_many_held_messages_as_it_may_hold(node):
    """A message that does not fit into x-max-held stays where it is."""
    Client(node).declare("small", arguments={"x-allow-hold": ("bool", True), "x-max-held": ("signedint", 3)})
    assert 3 == act(node, "move", destination="small").body["done"]
    settle(node)
    assert (17, 3) == (queue(node).held_count, node.vhosts["/"].queues["small"].held_count)


def test_a_moved_message_is_held_in_a_queue_that_holds(node):
    """A transfer to a queue that holds keeps the time, and leaves what the queue may not hold where it is."""
    client = Client(node)
    client.declare("plain", durable=True)
    client.declare("small", arguments={"x-allow-hold": ("bool", True), "x-max-held": ("signedint", 1)})
    for delay in (1000, 2000):
        headers = {"x-deliver-at": ("long", node.wall_clock() + delay)}
        client.publish("plain", b"m", headers=headers, delivery_mode=2)
    settle(node)
    Api(node, OPERATOR).post("leveret/queues/%2F/plain/move", {"destination": "small"})
    settle(node)
    node.clock.run()
    settle(node)
    small = node.vhosts["/"].queues["small"]
    assert (1, 0) == (small.held_count, small.ready_count)
    assert 1 == node.vhosts["/"].queues["plain"].ready_count
    pass_time(node, 1000)
    assert (0, 1) == (small.held_count, small.ready_count)


def test_a_large_message_moves_to_a_hold_in_one_commit(tmp_path):
    """On a full disk only what frees space is written: a message that moves to a hold stays where it was."""
    node = DiskNode(tmp_path, storage=StorageConfig(sync=False, blob_threshold=65536))
    client = Client(node)
    client.declare("plain", durable=True)
    client.declare("q", durable=True, arguments={"x-allow-hold": ("bool", True)})
    settle(node)
    headers = {"x-deliver-at": ("long", node.wall_clock() + 1000)}
    client.publish("plain", bytes(100_000), headers=headers, delivery_mode=2)
    node.write_files()
    settle(node)
    Api(node, OPERATOR).post("leveret/queues/%2F/plain/move", {"destination": "q"})
    for _ in range(5):  # it is read first
        node.read()
        node.clock.run()
    assert 1 == queue(node).held_count
    environment = node.disk.environment
    environment._commit_deletions(environment.store, node.disk.journal.cut().durable)
    again = node.killed()
    again.read()
    assert (0, 1) == (queue(again).held_count, again.vhosts["/"].queues["plain"].ready_count)
    again.disk.close()


def test_a_discard_leaves_what_is_held(node):
    """A discard of ready messages removes no held one."""
    act(node, "release", limit=2)
    settle(node)
    Api(node, OPERATOR).post("leveret/queues/%2F/q/discard", {})
    settle(node)
    node.clock.run()
    assert (18, 0) == (queue(node).held_count, queue(node).ready_count)


def test_a_dry_run_changes_nothing(node):
    """A dry run counts what would be done."""
    assert 20 == act(node, "cancel", dry_run=True).body["done"]
    assert 20 == queue(node).held_count


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"action": "stop"}, "action must be one of release, cancel, reschedule, move, copy"),
        ({"action": "reschedule"}, "'to' is the new time, with 'reschedule' only"),
        ({"action": "cancel", "to": 5}, "'to' is the new time, with 'reschedule' only"),
        ({"action": "move"}, "'destination' is a queue, with 'move' and 'copy' only"),
        ({"action": "cancel", "destination": "x"}, "'destination' is a queue, with 'move' and 'copy' only"),
        ({"action": "copy", "destination": "q"}, "is the source itself"),
        ({"action": "reschedule", "to": 2**63}, "'to' must be from 0 to"),
        ({"action": "cancel", "wher": "size > 1"}, "unknown key 'wher'"),
        ({"action": "cancel", "where": "size = 1"}, "where: column 6"),
        ({"action": "cancel", "limit": 0}, "limit must be at least 1"),
    ],
)
def test_what_is_invalid_is_refused(node, body, reason):
    """A request that means nothing is refused with the reason, and nothing changes."""
    answer = Api(node, OPERATOR).post(HELD, body)
    assert 400 == answer.status
    assert reason in answer.body["reason"]
    assert 20 == queue(node).held_count


def test_a_queue_that_holds_nothing_has_nothing_to_do(node):
    """A queue without holds answers with zeros; one that does not exist is 404, one without rights 401."""
    Client(node).declare("plain")
    api = Api(node, OPERATOR)
    answer = api.post("leveret/queues/%2F/plain/held", {"action": "cancel"})
    assert {"examined": 0, "matched": 0, "done": 0} == answer.body
    assert 404 == api.post("leveret/queues/%2F/none/held", {"action": "cancel"}).status
    api.put("users/ann", {"password": "ann", "tags": "management"})
    api.put("permissions/%2F/ann", {"configure": "", "write": ".*", "read": ".*"})
    settle(node)
    assert 401 == Api(node, "ann:ann").post(HELD, {"action": "cancel"}).status
    assert 20 == queue(node).held_count
