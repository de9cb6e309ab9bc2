"""Rights for administration: which user may administer which objects."""

import pytest

from leveret.broker.administration.access import ForbiddenError, Right, authorize
from leveret.broker.auth.users import User, Users

RIGHTS = (Right.MANAGEMENT, Right.POLICYMAKER, Right.MONITORING, Right.ADMINISTRATOR)

# tag: the rights it gives without a vhost, in a vhost one is let into, and in one where one is not
TABLE = {
    "": ("", "", ""),
    "impersonator": ("", "", ""),
    "management": ("management", "management", ""),
    "policymaker": ("management policymaker", "management policymaker", ""),
    "monitoring": ("management monitoring", "management monitoring", "management"),
    "administrator": (
        "management policymaker monitoring administrator",
        "management policymaker monitoring administrator",
        "management policymaker monitoring administrator",
    ),
}


def allowed(users: Users, user: User | None, vhost: str | None, *, change: bool = False) -> str:
    found = []
    for right in RIGHTS:
        try:
            authorize(users, user, right, vhost, change=change)
        except ForbiddenError:
            continue
        found.append(right)
    return " ".join(found)


@pytest.mark.parametrize("tag", TABLE)
def test_what_a_tag_allows(tag):
    """A tag grants the rights of RabbitMQ's management, mostly in vhosts that the user may connect to."""
    users = Users()
    user = User("u", "", (tag,) if tag else ())
    users.add(user)
    users.set_permissions("u", "open", "", "", "")

    assert TABLE[tag] == tuple(allowed(users, user, vhost) for vhost in (None, "open", "shut"))


def test_the_operator_may_everything():
    """A user of None stands for the operator of the machine, who has all rights."""
    assert " ".join(RIGHTS) == allowed(Users(), None, "anywhere")


def test_changing_as_a_client_needs_an_open_door():
    """An administrator needs permissions in a vhost, too, for the operations of clients there."""
    users = Users()
    user = User("u", "", ("administrator",))
    users.add(user)
    users.set_permissions("u", "open", "", "", "")

    assert (" ".join(RIGHTS), "") == (
        allowed(users, user, "open", change=True),
        allowed(users, user, "shut", change=True),
    )


def test_rabbitmqs_words():
    """A user without the right is refused with RabbitMQ's text."""
    users = Users()
    for user, right, text in (
        (User("u", ""), Right.ADMINISTRATOR, "Not administrator user"),
        (User("u", ""), Right.MANAGEMENT, "Not management user"),
        (
            User("u", "", ("management",)),
            Right.MANAGEMENT,
            "User not authorised to access virtual host",
        ),
    ):
        with pytest.raises(ForbiddenError) as refused:
            authorize(users, user, right, "v")
        assert text == str(refused.value)
