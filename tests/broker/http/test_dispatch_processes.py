"""Requests that the API of a process of virtual hosts refuses."""

import pytest

from leveret.broker.http.dispatch import check_place
from leveret.broker.http.errors import ApiError
from leveret.broker.management.routes import ROUTES

OF_FRONT = (
    "users",
    "permissions",
    "topic-permissions",
    "vhosts",
    "vhost-limits",
    "user-limits",
    "global-parameters",
)


def is_refused(place: str, path: str, method: str) -> bool:
    try:
        check_place(place, path, method)
    except ApiError:
        return True
    return False


def test_a_broker_of_one_process_answers_everything() -> None:
    """Nothing is refused without the mode."""
    assert not [route.path for route in ROUTES if is_refused("", route.path, "PUT")]


@pytest.mark.parametrize("path", OF_FRONT)
def test_the_front_has_users_and_names(path: str) -> None:
    """Users, rights, limits and names are changed in the front only, and may be read in a process, too."""
    for each in (path, f"{path}/{{vhost}}"):
        assert not is_refused("front", each, "PUT")
        assert not is_refused("process", each, "GET")
        assert is_refused("process", each, "DELETE")


def test_a_process_imports_no_users() -> None:
    """An import may change users, so a process does none but that of one virtual host."""
    assert is_refused("process", "definitions", "POST")
    assert not is_refused("process", "definitions/{vhost}", "POST")
    assert not is_refused("process", "queues/{vhost}/{queue}", "PUT")
