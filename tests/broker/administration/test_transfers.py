"""Rights that a user needs as long as a transfer runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from leveret.broker.administration.transfers import Needed, refusal
from leveret.broker.auth.users import BackendUser, Users

SECOND = 1000
ENDED = "the login of user 'ann' has ended"


def reason(wall_clock: int, expires: float | None) -> str:
    """Return why a user without a tag may not go on; the session of the browser has ended before."""
    ann = BackendUser("ann", "", (), login_expires=expires, expires=1.0)
    broker: Any = SimpleNamespace(wall_clock=lambda: wall_clock, users=Users())
    place: Any = SimpleNamespace(name="/")
    return refusal(broker, Needed(ann, place, "q"))


@pytest.mark.parametrize(
    ("expires", "found"), [(None, "Not management user"), (10.0, "Not management user"), (9.0, ENDED)]
)
def test_a_token_that_ends_ends_what_its_user_does(expires, found):
    """From its last second on; the end of a browser's session, which has to be renewed each hour, does not."""
    assert found == reason(9 * SECOND, expires)


def test_the_operator_needs_no_right():
    """Nothing is asked."""
    nothing: Any = SimpleNamespace()

    assert "" == refusal(nothing, Needed(None, nothing, "q"))
