"""The API of a new broker."""

import pytest
from doubles.fakes import Node
from services.api import Api


@pytest.fixture
def api() -> Api:
    """The API of a new broker, used by its administrator."""
    return Api(Node())


@pytest.fixture
def users(api) -> dict[str, Api]:
    """The API as used by one user for each tag, with permissions in the vhost `own` only; and by one without a tag."""
    api.put("vhosts/own")
    for name in ("none", "management", "policymaker", "monitoring", "administrator"):
        api.put(f"users/{name}", {"password": "x", "tags": "" if name == "none" else name})
        api.put(f"permissions/own/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    return {
        name: Api(api.node, f"{name}:x")
        for name in ("none", "management", "policymaker", "monitoring", "administrator")
    }
