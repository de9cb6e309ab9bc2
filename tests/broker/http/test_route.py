"""Routes and how they are found."""

import pytest

from leveret.broker.http.call import Item
from leveret.broker.http.errors import ApiError
from leveret.broker.http.route import Operation, Route, Router

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
