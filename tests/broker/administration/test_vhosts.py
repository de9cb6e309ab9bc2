"""Administration of vhosts."""

import pytest
from doubles.fakes import Client, DiskNode, StoringNode
from services.api import OPERATOR, Api

from leveret.broker.administration import BadRequestError, NotFoundError
from leveret.broker.channel.settings import Limits


@pytest.fixture
def vhosts(node):
    return node.administration.vhosts


def test_what_is_said_of_a_vhost_survives(node, vhosts):
    """Description, tags, default queue type and limits survive a restart, with their latest values."""
    vhosts.put(None, "v", description="first", tags=["a"])
    vhosts.put(None, "v", description="second", tags=["a", "b"], default_queue_type="quorum")
    limits = {"max-queues": 5, "max-connections": -1}
    node.administration.policies.set_parameter(None, "v", "vhost-limits", "limits", limits)
    node.commit()
    node = node.restarted()
    metadata = {"description": "second", "tags": ["a", "b"], "default_queue_type": "quorum"}
    shown = Api(node, OPERATOR).get("vhosts/v")

    assert metadata == shown["metadata"] == {name: shown[name] for name in metadata}
    assert [{"vhost": "v", "value": limits}] == list(node.administration.vhosts.limits(None, "v"))
    assert 5 == node.users.vhost_limits("v").max_queues


def test_an_unknown_default_queue_type_is_refused(node, vhosts):
    """Nothing has changed then, as no durable queue could be declared with it; `undefined` is none."""
    vhosts.put(None, "v", default_queue_type="quorum")
    with pytest.raises(
        BadRequestError,
        match="Unsupported default queue type 'super': it must be one of classic, quorum, stream",
    ):
        vhosts.put(None, "v", description="new", default_queue_type="super")
    with pytest.raises(BadRequestError, match="Unsupported default queue type 'nope'"):
        node.administration.definitions.import_file(
            None, b'{"vhosts": [{"name": "w", "metadata": {"default_queue_type": "nope"}}]}'
        )

    assert ["/", "v"] == sorted(node.vhosts)
    assert ("", (), "quorum", False) == node.vhosts["v"].metadata
    vhosts.put(None, "v", default_queue_type="undefined")
    assert "" == node.vhosts["v"].metadata.default_queue_type


def test_a_deleted_vhost_closes_its_connections_first(node, vhosts):
    """Deleting a vhost closes its connections with a reason first, then removes it with its permissions and rows."""
    vhosts.put(None, "v")
    node.administration.users.set_permissions(None, "v", "guest", configure=".*", write=".*", read=".*")
    node.commit()
    client = Client(node, vhost="v")
    client.declare("q", durable=True)
    node.commit()
    rows = len(StoringNode().store.rows)
    client.sent()
    vhosts.delete(None, "v")
    node.commit()

    assert [
        "0 connection.close reply_code=320 reply_text=\"CONNECTION_FORCED - vhost 'v' is deleted\""
    ] == client.sent()
    assert ["/"] == list(node.restarted().vhosts)
    assert rows == len(node.store.rows)


def test_limits_are_replaced_as_a_whole(node, vhosts):
    """Setting limits replaces all of them: one that is not named is removed, as in RabbitMQ."""
    for limits in ({"max-queues": 5}, {"max-connections": 6}):
        node.administration.policies.set_parameter(None, "/", "vhost-limits", "limits", limits)

    assert [{"vhost": "/", "value": {"max-connections": 6}}] == list(vhosts.limits(None))


@pytest.mark.parametrize("name", ["", "v" * 256])
def test_impossible_names(vhosts, name):
    """A vhost has a name of 1 to 255 octets."""
    with pytest.raises(BadRequestError, match="Virtual host name"):
        vhosts.put(None, name)


def test_the_limit_of_vhosts():
    """No vhost can be added above the configured limit, in any way; existing ones may be changed."""
    node = StoringNode(limits=Limits(vhost_max=2))
    vhosts = node.administration.vhosts
    vhosts.put(None, "v")
    vhosts.put(None, "v", description="changed")
    with pytest.raises(BadRequestError, match="cannot create vhost 'w': vhost limit of 2 is reached"):
        vhosts.put(None, "w")
    with pytest.raises(BadRequestError, match="cannot create vhost 'w': vhost limit of 2 is reached"):
        node.administration.definitions.import_file(None, b'{"vhosts": [{"name": "v"}, {"name": "w"}]}')

    assert ["/", "v"] == list(node.vhosts)


def test_one_that_does_not_exist(vhosts):
    """Requests for a vhost that does not exist fail with RabbitMQ's text."""
    with pytest.raises(NotFoundError, match="Virtual host 'v' does not exist"):
        vhosts.delete(None, "v")


def test_nothing_of_a_deleted_vhost_is_left_on_disk(tmp_path):
    """Deleting a vhost deletes messages of all kinds of queues, delayed ones, metadata, policies and permissions."""
    node = DiskNode(tmp_path / "data")

    def rows() -> dict[str, int]:
        environment = node.disk.environment
        tables = set(environment.store.db) - {"meta"}  # which says how the last run ended
        return {name: len(list(environment.rows(name))) for name in tables}

    before = rows()
    administration = node.administration
    administration.vhosts.put(None, "v")
    administration.users.set_permissions(None, "v", "guest", configure=".*", write=".*", read=".*")
    administration.policies.set(None, "v", "p", {"pattern": "", "definition": {"max-length": 100}})
    administration.topology.declare_exchange(
        None, "v", "later", "x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    client = Client(node, vhost="v")
    kinds = ({}, {"x-max-priority": ("long", 3)}, {"x-message-ttl": ("long", 100_000)})
    for number, arguments in enumerate(kinds):
        client.declare(f"q{number}", durable=True, arguments=arguments)
        node.commit()
        client.publish(f"q{number}", b"x" * 10_000, delivery_mode=2)
    client.publish("k", b"x", exchange="later", headers={"x-delay": ("long", 100_000)}, delivery_mode=2)
    client.consume("q0")
    node.commit()
    meanwhile = rows()
    administration.vhosts.delete(None, "v")
    for _ in range(3):
        node.commit()
    after = rows()
    client.connection.lost()
    node = node.restarted()
    restarted = rows()
    node.disk.close()

    assert all(meanwhile[name] > before[name] for name in ("defs", "blocks", "bodies", "delayed"))
    assert (before, before) == (after, restarted)
