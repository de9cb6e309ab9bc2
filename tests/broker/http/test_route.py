"""Routes and how they are found."""

import pytest

from leveret.broker.http.call import Item
from leveret.broker.http.errors import ApiError
from leveret.broker.http.route import Key, Operation, Route, Router, Routes, Scope, required

ANY = {"GET": Operation(lambda _call: Item({}), "Nothing.")}
ROUTER = Router(
    [
        Route("queues", "x", ANY),
        Route("queues/detailed", "x", ANY),
        Route("queues/{vhost}", "x", ANY),
        Route("queues/{vhost}/{queue}", "x", ANY),
        Route("queues/quorum/{vhost}/{queue}/status", "x", ANY),
    ]
)


@pytest.mark.parametrize(
    ("path", "route", "names"),
    [
        ("queues", "queues", {}),
        ("queues/", "queues", {}),
        ("queues/detailed", "queues/detailed", {}),
        ("queues/%2F", "queues/{vhost}", {"vhost": "/"}),
        ("queues/%2f/", "queues/{vhost}", {"vhost": "/"}),
        ("queues/%2F/a%2Fb", "queues/{vhost}/{queue}", {"vhost": "/", "queue": "a/b"}),
        ("queues/v/a+b%20c%25d", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "a+b c%d"}),
        ("queues/v/%252F", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "%2F"}),
        ("queues/v/%2E%2E", "queues/{vhost}/{queue}", {"vhost": "v", "queue": ".."}),
        ("queues/v/%3F%23%3B", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "?#;"}),
        ("queues/v/%C3%A9", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "\xe9"}),
        ("queues/v/%FF", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "\udcff"}),
        ("queues/quorum/q", "queues/{vhost}/{queue}", {"vhost": "quorum", "queue": "q"}),
        ("queues/quorum/v/q/status", "queues/quorum/{vhost}/{queue}/status", {"vhost": "v", "queue": "q"}),
        ("queues//q", "queues/{vhost}/{queue}", {"vhost": "", "queue": "q"}),
    ],
)
def test_a_path_is_divided_first_and_then_decoded_once(path, route, names):
    """A fixed segment goes before a name; a plus is a plus; one slash at the end does not matter."""
    found = ROUTER.find(path)

    assert found is not None
    assert (route, names) == (found[0].path, found[1])


@pytest.mark.parametrize("path", ["", "/", "que", "queues/v/q/more", "queues/v/q//", "/queues"])
def test_other_paths_are_not_found(path):
    """Nor is one with two slashes at its end."""
    assert ROUTER.find(path) is None


@pytest.mark.parametrize(
    "path", ["queues/v/%", "queues/v/%2", "queues/%zz/q", "queues/v/%2%35", "nothing/50%"]
)
def test_a_path_that_is_not_encoded_is_refused(path):
    """A percent sign without two hexadecimal digits is an error, not part of a name."""
    with pytest.raises(ApiError) as refused:
        ROUTER.find(path)
    assert 400 == refused.value.status


def test_methods_of_a_route():
    """A path with GET has HEAD, and every path has OPTIONS."""
    assert ("HEAD", "GET", "OPTIONS") == Route("x", "x", ANY).methods
    assert ("PUT", "OPTIONS") == Route("x", "x", {"PUT": ANY["GET"]}).methods


def test_a_handler_is_a_route_by_its_decorator():
    """Its docstring is the summary, handlers of one path are one route, and most fields have defaults."""
    routes = Routes("queues", scope=Scope.VHOST)

    @routes.list("queues", "queues/{vhost}", doc="All queues.")
    @routes.get("queues/{vhost}/{queue}")
    def get(_call):
        """One queue.

        There is one.
        """
        return Item({})

    @routes.put("queues/{vhost}/{queue}", body=(required("durable", "boolean"),), group="ignored")
    @routes.post("queues/{vhost}/{queue}/pause", arguments={"paused": True}, needs=None, group="pauses")
    def put(_call, *, paused=False):
        """Do it."""
        return paused

    @routes.put("queues/{vhost}/{queue}/resume")
    def resume(_call) -> None:
        """Resume it."""

    found = {route.path: route for route in routes}
    one = found["queues/{vhost}/{queue}"]
    pause = found["queues/{vhost}/{queue}/pause"]

    assert ["GET", "PUT"] == list(one.operations)
    assert ("queues", "pauses") == (one.group, pause.group)
    assert ("One queue. There is one.", "Do it.") == tuple(each.doc for each in one.operations.values())
    assert ("object", "array") == (one.operations["GET"].kind, found["queues"].operations["GET"].kind)
    assert [(200,), (201, 204)] == [each.statuses for each in one.operations.values()]
    assert (Key("durable", "boolean", is_required=True),) == one.operations["PUT"].body
    assert [Scope.NONE, Scope.VHOST, Scope.VHOST] == [
        found[path].operations["GET"].scope for path in ("queues", "queues/{vhost}", one.path)
    ]
    assert pause.operations["POST"].handler(None) is True
    assert get(None) == one.operations["GET"].handler(None)
    assert ((204,), None) == (found["queues/{vhost}/{queue}/resume"].operations["PUT"].statuses, resume(None))
