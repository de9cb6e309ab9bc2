"""Questions to an LDAP directory: clients cannot change them, and nobody is let in without a password."""

import asyncio
import re
import socket

import pytest
from hypothesis import example, given, strategies as st

from leveret.broker.auth.backends.ldap_queries import UndecidedError, dn_of, query_of
from leveret.broker.auth.backends.settings import Bind, LDAPQueries, LDAPSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError

pytest.importorskip("ldap3")
from leveret.broker.auth.backends.ldap import LDAPBackend
from leveret.broker.auth.backends.ldap_queries import escaped_in_condition

ALL = query_of("vhost_access", "{constant, true}")
SPECIAL = st.text(st.sampled_from('ab ,+"\\<>;=#*()&|!~\0ü'), max_size=12)


@given(st.one_of(SPECIAL, st.text(max_size=40)))
@example("x,ou=admins")
@example("*)(uid=*")
def test_sec_34_names_are_no_syntax_of_directories(name):
    """A name is one value in a DN and in a condition, or it is refused; it never adds a part to either."""
    try:
        dn = dn_of("uid=${username},ou=people", {"username": name})
    except UndecidedError:
        return
    value = dn.removeprefix("uid=").removesuffix(",ou=people")
    plain = re.sub(r"\\.", "", value)
    condition = escaped_in_condition(name)

    assert name == re.sub(r"\\(.)", r"\1", value)
    assert not set(',+"\\<>;=\0') & set(plain)
    assert not value.startswith(("#", " "))
    assert not set("*()\0") & set(condition)
    assert name == re.sub(r"\\([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), condition)


def test_sec_34_a_directory_is_not_asked_without_a_password():
    """A login with an empty password, or with one that a server may take for empty, opens no connection."""

    async def refused(port):
        settings = LDAPSettings(
            servers=("127.0.0.1",),
            port=port,
            other_bind=Bind("anon"),
            queries=LDAPQueries(vhost_access=ALL, resource_access=ALL),
        )
        backend = LDAPBackend(settings)
        for secret in ("", "\0", "\0x"):
            with pytest.raises(LoginRefusedError):
                await backend.log_in("ann", Password(secret))
        await backend.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(refused(listener.getsockname()[1]))
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
