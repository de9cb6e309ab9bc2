"""Logins and operations of users of a directory, as RabbitMQ's plugin rabbitmq_auth_backend_ldap and ours decide.

`ldap_logins.txt` has the decisions of RabbitMQ 3.10; `python tests/conformance/ldap_logins.py` records them again.
"""

import tempfile
from pathlib import Path

from conformance.brokers import Broker, SetUp, start_rabbitmq
from conformance.wire import Client, ClosedError, QuietError
from processes import slapd
from processes.slapd import GROUPS, PEOPLE

RECORD = Path(__file__).with_name("ldap_logins.txt")
SECONDS = 60.0
_QUERIES = {
    "vhost_access": """{'or', [{equals, "${vhost}", "/"}, {in_group, "cn=${vhost}-users,GROUPS"}]}""",
    "resource_access": """{for, [
        {permission, configure, {in_group, "cn=admins,GROUPS"}},
        {permission, write, {for, [
            {resource, exchange, {constant, true}},
            {resource, queue, {match, {string, "${name}"}, {string, "^${username}-"}}}]}},
        {permission, read, {for, [
            {resource, exchange, {constant, true}},
            {resource, queue, {'or', [
                {match, {string, "${name}"}, {string, "-q$"}},
                {exists, "cn=${name},GROUPS"}]}}]}}]}""",
    "topic_access": """{for, [
        {permission, write, {match, {string, "${routing_key}"}, {string, "^a"}}},
        {permission, read, {constant, true}}]}""",
    "tags": """[{administrator, {in_group, "cn=admins,GROUPS"}}, {management, {constant, true}}]""",
}
QUERIES = {name: text.replace("GROUPS", GROUPS) for name, text in _QUERIES.items()}
ODD = {
    "Smith, John": r"Smith\, John",
    "a+b": r"a\+b",
    "(paren)": "(paren)",
    "o'brien": "o'brien",
    "st*r": "st*r",
}
QUEUES = ("ann-q", "bob-q", "a+b-q", "aab-q", "(paren)-q", "plain", "admins", "odd,name", "odd+name")
LOGINS = (
    ("ann", "ann-secret"), ("bob", "bob-secret"), ("ann", "wrong"), ("ann", "bob-secret"), ("ann", "ANN-SECRET"),
    ("nobody", "nobody-secret"), ("ann", ""), ("", ""), ("", "ann-secret"), ("ANN", "ann-secret"), ("ann ", "ann-secret"),
    (" ann", "ann-secret"), ("a*", "ann-secret"), ("*", "ann-secret"), ("ann)(uid=*", "ann-secret"),
    (r"\\61nn", "ann-secret"), ("ann,ou=people,dc=example,dc=com", "ann-secret"), ("ann+cn=ann", "ann-secret"),
    *((name, "odd-secret") for name in ODD),
)  # fmt: skip
"""Names and passwords."""
VHOSTS = (("ann", "/"), ("ann", "other"), ("bob", "other"), ("bob", "queues"), ("ann", "missing"))


def entries() -> list[str]:
    """Return the entries of the directory."""
    odd = [
        slapd.entry(
            f"uid={dn},{PEOPLE}", "inetOrgPerson", uid=name, cn="odd", sn="odd", userPassword="odd-secret"
        )
        for name, dn in ODD.items()
    ]
    groups = [slapd.group("admins", "ann"), slapd.group("other-users", "bob")]
    return [slapd.person("ann"), slapd.person("bob"), *odd, *groups]


def operations(user: str) -> list[tuple[str, dict[str, object]]]:
    """Return what a user does, each on a channel of its own."""
    bound = {"exchange": "amq.topic", "routing_key": "x", "arguments": {}}
    return [
        ("queue.declare", {"queue": f"{user}-new", "exclusive": True}),
        *(("basic.get", {"queue": queue, "no_ack": True}) for queue in QUEUES),
        *(("queue.bind", {"queue": queue, **bound}) for queue in QUEUES if queue.endswith("-q")),
        ("publish", {"exchange": "amq.topic", "routing_key": "a.b"}),
        ("publish", {"exchange": "amq.topic", "routing_key": "b.a"}),
        ("publish", {"exchange": "amq.direct", "routing_key": "b.a"}),
    ]


def outcome(broker: Broker, user: str, password: str, vhost: str) -> tuple[str, Client | None]:
    """Return how a login ends, and the client if it has succeeded."""
    client = broker.client(SECONDS)
    try:
        return "ok", client.login(user, password, vhost)
    except (ClosedError, QuietError, OSError) as error:
        client.close_socket()
        close = getattr(error, "close", None)
        return (f"{close.reply_code}" if close else "closed"), None


def record(broker: Broker) -> list[str]:
    """Return a line for each login and each operation, with its outcome."""
    client = broker.client(SECONDS).login()
    channel = client.channel(1)
    for queue in QUEUES:
        channel.queue(queue, durable=True)
    lines = []
    for user, password in LOGINS:
        result, found = outcome(broker, user, password, "/")
        lines.append(f"login {user!r} {password!r}: {result}")
        if found is not None:
            found.close_socket()
    for user, vhost in VHOSTS:
        result, found = outcome(broker, user, f"{user}-secret", vhost)
        lines.append(f"vhost {user!r} {vhost!r}: {result}")
        if found is not None:
            found.close_socket()
    for user, password in (
        ("ann", "ann-secret"),
        ("bob", "bob-secret"),
        *((name, "odd-secret") for name in ODD),
    ):
        result, found = outcome(broker, user, password, "/")
        if found is None:
            continue
        for number, (method, fields) in enumerate(operations(user), 1):
            shown = " ".join(
                str(value) for name, value in fields.items() if name in {"exchange", "routing_key", "queue"}
            )
            result = done(found, number, method, fields)
            lines.append(f"{method} {user!r} {shown}: {result}")
            if result.endswith("closed"):
                _, found = outcome(broker, user, password, "/")
                assert found is not None
        found.close_socket()
    client.close_socket()
    return lines


def done(client: Client, number: int, method: str, fields: dict[str, object]) -> str:
    """Carry out an operation; returns ok, or the code of the error."""
    channel = client.channel(number)
    try:
        if method == "publish":
            channel.publish(str(fields["exchange"]), str(fields["routing_key"]), b"body")
            channel.sync()
        else:
            channel.call(method, **fields)
    except ClosedError as error:
        if error.close is None or error.level != "channel":
            client.close_socket()
            return f"{error.close.reply_code if error.close else ''} connection closed".strip()
        channel.send("channel.close-ok")
        return str(error.close.reply_code)
    return "ok"


def rabbitmqs(directory: slapd.Slapd) -> SetUp:
    """Return the settings of RabbitMQ: queries are terms of another file."""
    names = {"vhost_access": "vhost_access_query", "resource_access": "resource_access_query",
             "topic_access": "topic_access_query", "tags": "tag_queries"}  # fmt: skip
    terms = ",".join(f"{{{names[name]},{text}}}" for name, text in QUERIES.items())
    other = f'{{other_bind,{{"{slapd.BROKER.dn}","{slapd.BROKER.password}"}}}}'
    return SetUp(
        "main",
        rabbitmq=f"]}},{{rabbitmq_auth_backend_ldap,[{terms},{other}",
        plugins="rabbitmq_auth_backend_ldap",
        lines=(
            "auth_backends.1 = internal",
            "auth_backends.2 = ldap",
            "auth_ldap.servers.1 = 127.0.0.1",
            f"auth_ldap.port = {directory.port}",
            f"auth_ldap.user_dn_pattern = uid=${{username}},{PEOPLE}",
        ),
    )


def ours(directory: slapd.Slapd) -> SetUp:
    """Return the settings of ours."""
    return SetUp(
        "main",
        (
            "auth.failure_delay=0ms",
            "auth_backends.1=internal",
            "auth_backends.2=ldap",
            "auth_ldap.servers.1=127.0.0.1",
            f"auth_ldap.port={directory.port}",
            f"auth_ldap.user_dn_pattern=uid=${{username}},{PEOPLE}",
            f"auth_ldap.other_bind.user_dn={slapd.BROKER.dn}",
            f"auth_ldap.other_bind.password={slapd.BROKER.password}",
            *(f"auth_ldap.queries.{name}={' '.join(text.split())}" for name, text in QUERIES.items()),
        ),
    )


def main() -> None:
    """Record RabbitMQ's lines."""
    with tempfile.TemporaryDirectory() as folder, slapd.running(Path(folder), entries()) as directory:
        broker = start_rabbitmq(rabbitmqs(directory))
        try:
            RECORD.write_text("\n".join(record(broker)) + "\n", encoding="utf-8")
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
