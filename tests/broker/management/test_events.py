"""Topics of the events: their rows, and who sees them."""

import json

import pytest
from doubles.fakes import Client, Node
from services.api import Api, respond

from leveret.broker.http.call import Request
from leveret.broker.http.feeds import Feed
from leveret.broker.management.events import QUEUE_COLUMNS
from leveret.broker.management.routes import ROUTER


def watch(node: Node, query: dict[str, str], **headers: str):
    """Return the response to a client that wants events."""
    steps = respond(node, ROUTER, Request("GET", "/api/leveret/events", query, headers, "127.0.0.1"))
    with pytest.raises(StopIteration) as done:
        next(steps)
    return done.value.value


def rows(topic) -> dict:
    return dict(item for item in topic.read() if item is not None)


def login(name: str) -> dict[str, str]:
    """Return the header for a user whose password is x."""
    import base64

    return {"authorization": f"Basic {base64.b64encode(f'{name}:x'.encode()).decode()}"}


@pytest.fixture
def node() -> Node:
    """A broker with a queue in each of two vhosts, and users who see one of them, or all."""
    node = Node()
    api = Api(node)
    for vhost in ("a", "b"):
        api.put(f"vhosts/{vhost}")
        api.put(f"queues/{vhost}/q-{vhost}", {"durable": True})
    for name, tags in (("ann", "management"), ("mo", "monitoring")):
        api.put(f"users/{name}", {"password": "x", "tags": tags})
        api.put(f"permissions/a/{name}", {"configure": "", "write": "", "read": ""})
    api.post(
        "exchanges/a/amq.default/publish",
        {"routing_key": "q-a", "payload": "m", "payload_encoding": "string", "properties": {}},
    )
    return node


def test_queues_have_their_columns(node):
    """Counts since the start, and what makes a queue need attention."""
    (topic,) = watch(node, {"topics": "queues"}, **login("mo")).events.topics
    found = rows(topic)
    row = dict(zip(QUEUE_COLUMNS, found["a", "q-a"], strict=True))

    assert {("a", "q-a"), ("b", "q-b")} == found.keys()
    assert {"vhost": "a", "name": "q-a", "type": "classic", "features": ("D",)}.items() <= row.items()
    assert (1, 0, 1, 0) == (row["messages_ready"], row["messages_unacknowledged"], row["publish"], row["ack"])


def test_features_of_a_queue_come_from_arguments_and_policies(node):
    """In the abbreviations of RabbitMQ's page."""
    arguments = {"x-max-priority": 3, "x-message-ttl": 5, "x-dead-letter-exchange": ""}
    Api(node).put("queues/a/q", {"auto_delete": True, "arguments": arguments})
    Api(node).put(
        "policies/a/p", {"pattern": "^q$", "definition": {"max-length": 10, "overflow": "reject-publish"}}
    )
    (topic,) = watch(node, {"topics": "queues"}, **login("mo")).events.topics
    row = dict(zip(QUEUE_COLUMNS, rows(topic)["a", "q"], strict=True))

    assert ("AD", "Pri", "TTL", "Lim", "Ovfl", "DLX") == row["features"]


def test_octets_are_counted_for_those_who_may_see_them(node):
    """Of connections that are closed, too."""

    def received(name: str) -> int:
        (topic,) = watch(node, {"topics": "overview"}, **login(name)).events.topics
        return rows(topic)[""]["counts"]["recv_oct"]

    one, other = (Client(node, vhost=vhost, port=port) for vhost, port in (("a", 50001), ("b", 50002)))
    one.connection.octets_in, other.connection.octets_in = 1000, 10
    one.connection.lost()

    assert (1000, 1010) == (received("ann"), received("mo"))


def test_rows_can_be_sent(node):
    """Also with names that are no text."""
    node.administration.topology.declare_queue(None, "a", "\udcff<script>")
    (topic,) = watch(node, {"topics": "queues"}, **login("mo")).events.topics
    feed = Feed(topic, node.wall_clock)
    for _ in feed.sample():
        pass

    event, *_ = feed.since(0)
    assert 3 == len(json.loads(event.partition(b"data: ")[2])["rows"])


def test_one_sees_the_own_vhosts_only(node):
    """A monitoring user sees all, and the node."""
    (ann,) = watch(node, {"topics": "queues"}, **login("ann")).events.topics
    assert {("a", "q-a")} == rows(ann).keys()

    (ann,) = watch(node, {"topics": "overview"}, **login("ann")).events.topics
    (mo,) = watch(node, {"topics": "overview"}, **login("mo")).events.topics
    assert ann.identity != mo.identity
    assert (1, 2) == (rows(ann)[""]["objects"]["queues"], rows(mo)[""]["objects"]["queues"])
    assert "node" not in rows(ann)[""]
    assert {"mem_used", "disk_free", "fd_used"} <= rows(mo)[""]["node"].keys()
    assert rows(mo)[""]["node"]["disk_free"] is None  # there is no data directory


def test_a_vhost_alone(node):
    """If one may see it."""
    (topic,) = watch(node, {"topics": "queues", "vhost": "b"}, **login("mo")).events.topics
    assert {("b", "q-b")} == rows(topic).keys()
    assert 401 == watch(node, {"topics": "queues", "vhost": "b"}, **login("ann")).status


@pytest.mark.parametrize("topics", ["", ",", "nothing", "overview,nothing"])
def test_topics_must_be_known(node, topics):
    """The reason names them."""
    assert 400 == watch(node, {"topics": topics}, **login("mo")).status


def test_those_who_see_the_same_share_a_feed(node):
    """So ten of them cost what one costs."""
    first, second = (watch(node, {"topics": "queues"}, **login("mo")).events.topics[0] for _ in range(2))
    assert first.identity == second.identity


def test_rights_are_looked_at_again(node):
    """The topics are others when the permissions are, and none without the user."""
    events = watch(node, {"topics": "queues"}, **login("ann")).events
    before = [topic.identity for topic in events.topics]
    assert before == [topic.identity for topic in events.renewed()]

    Api(node).delete("permissions/a/ann")
    assert before != [topic.identity for topic in events.renewed()]
    Api(node).delete("users/ann")
    assert () == events.renewed()


def test_a_stream_ends_with_its_session(node):
    """After a logout, in another window, too."""
    answer = Api(node, "").request("POST", "login", b"username=mo&password=x")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    events = watch(node, {"topics": "queues"}, cookie=cookie).events
    assert () != events.renewed()

    node.sessions.end(cookie.partition("=")[2])
    assert () == events.renewed()


def test_latencies_are_those_since_the_pass_before(node):
    """None if there were none: an old one says nothing about now."""
    (topic,) = watch(node, {"topics": "overview"}, **login("mo")).events.topics
    assert None is rows(topic)[""]["latencies"]["confirm"]
    node.context.latencies.confirm["standard"].record(1000, 10)
    found = rows(topic)[""]["latencies"]["confirm"]

    assert {"count": 10, "p50": 1000, "p99": 1000} == found
    assert None is rows(topic)[""]["latencies"]["confirm"]


def test_the_headers_alone(node):
    """HEAD begins no stream."""
    steps = respond(
        node, ROUTER, Request("HEAD", "/api/leveret/events", {"topics": "queues"}, login("mo"), "127.0.0.1")
    )
    with pytest.raises(StopIteration) as done:
        next(steps)

    response = done.value.value
    assert (200, None) == (response.status, response.events)
    assert "text/event-stream" == response.headers["content-type"]
