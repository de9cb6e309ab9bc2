"""The LDAP backend with a real directory: logins, injections, groups, TLS."""

import asyncio
import contextlib
import logging
import socket

import aiohttp
import aiormq
import pytest
from processes import slapd
from processes.slapd import BROKER, GROUPS, PEOPLE
from samples.certificates import Authority
from services.authenticating import SECONDS, broker, chain, connect

from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.backends.guarded import Guarded
from leveret.broker.auth.backends.settings import Bind, CacheSettings, ClientTLS
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Question
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.http.server import ManagementServer
from leveret.broker.management.routes import ROUTER

pytest.importorskip("ldap3")
from leveret.broker.auth.backends.ldap import LDAPBackend, Question as Asked

# Names with special characters, as the directory has them: (DN of the entry, name).
ODD = [
    (r"uid=Smith\, John", "Smith, John"),
    (r"uid=a\+b", "a+b"),
    (r"uid=x\"y", 'x"y'),
    (r"uid=back\\slash", "back\\slash"),
    (r"uid=\#hash", "#hash"),
    (r"uid=less\<more\>", "less<more>"),
    (r"uid=semi\;colon", "semi;colon"),
    (r"uid=is\=equal", "is=equal"),
    ("uid=st*r", "st*r"),
    ("uid=(paren)", "(paren)"),
    ("uid=o'brien", "o'brien"),
]
INJECTIONS = [
    "*",
    "a*",
    "*)(uid=*",
    "ann)(|(uid=*",
    "ann)(uid=*))(|(uid=*",
    "*)(objectClass=*",
    "ann\0",
    "ann\0)(uid=bob",
    "\0",
    "\\61nn",
    "\\2a",
    "ann\\",
    "bob,ou=people,dc=example,dc=com\0",
    "ann,ou=people,dc=example,dc=com",
    "ann+cn=ann",
    "ann,",
    " ann",
    "ann ",
    "#616e6e",
    "\u200bann",
    "a\u00adnn",
    "\uff41nn",
    "ann\n",
    '"ann"',
    "uid=ann",
    "ann;uid=bob",
    "${username}",
    "\udc80ann",
    "ann" * 100,
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with a few people and groups, and a certificate for `localhost`."""
    folder = tmp_path_factory.mktemp("slapd")
    authority = Authority(folder)
    issued = authority.server("directory", "localhost")
    odd = [
        slapd.entry(
            f"{dn},{PEOPLE}", "inetOrgPerson", uid=name, cn="odd", sn="odd", userPassword="odd-secret"
        )
        for dn, name in ODD
    ]
    entries = [
        slapd.person("ann", description="may declare"),
        slapd.person("bob"),
        slapd.person("twin1", mail="twin@example.com"),
        slapd.person("twin2", mail="twin@example.com"),
        *odd,
        slapd.group("admins", "ann"),
        slapd.group("staff", f"cn=admins,{GROUPS}", "bob"),
        slapd.group("v1", "bob"),
    ]
    tls = {"ca": authority.file, "certificate": issued.certfile, "key": issued.keyfile}
    with slapd.running(folder, entries, tls) as running:
        running.authority = authority
        yield running


@contextlib.asynccontextmanager
async def backend(settings):
    made = LDAPBackend(settings)
    try:
        async with asyncio.timeout(slapd.SECONDS):
            yield made
    finally:
        await made.close()


LOOKUP = {"user_dn_pattern": "${username}", "dn_lookup_attribute": "uid", "dn_lookup_base": PEOPLE}
WAYS = {
    "pattern": {},
    "pattern as user": {"other_bind": Bind()},
    "lookup": LOOKUP | {"dn_lookup_bind": BROKER},
    "anonymous lookup": LOOKUP | {"dn_lookup_bind": Bind("anon"), "other_bind": Bind("anon")},
    "lookup after": LOOKUP | {"user_bind_pattern": f"uid=${{username}},{PEOPLE}"},
}


@pytest.mark.parametrize("way", WAYS)
async def test_users_log_in_by_their_passwords(directory, way):
    """However the entry of a user is found, the right password is needed, and the name can have special characters."""
    async with backend(directory.settings(**WAYS[way])) as ldap:
        login = await ldap.log_in("ann", Password("ann-secret"))
        assert ("ann", (), f"uid=ann,{PEOPLE}") == (login.name, login.tags, login.data.dn)
        for _, name in ODD:
            assert name == (await ldap.log_in(name, Password("odd-secret"))).name
            with pytest.raises(LoginRefusedError):
                await ldap.log_in(name, Password("ann-secret"))
        for name, password in (("ann", "bob-secret"), ("ann", "ANN-SECRET"), ("nobody", "ann-secret")):
            with pytest.raises(LoginRefusedError, match="invalid credentials"):
                await ldap.log_in(name, Password(password))


@pytest.mark.parametrize("way", WAYS)
async def test_an_injection_logs_in_as_nobody(directory, way):
    """No name that has syntax of filters, DNs or C in it is another user's, and none makes the backend count as down."""
    async with backend(directory.settings(**WAYS[way])) as ldap:
        guarded = Guarded(ldap, slapd.SECONDS, asyncio.get_running_loop().time)
        for name in INJECTIONS:
            for secret in ("ann-secret", "bob-secret", "odd-secret"):
                with pytest.raises(LoginRefusedError):
                    await guarded.log_in(name, Password(secret))
            with pytest.raises(LoginRefusedError):
                await guarded.find(name)
        assert 20 <= len(INJECTIONS)
        assert {"allowed": 0, "refused": 4 * len(INJECTIONS), "failed": 0, "not_asked": 0} == guarded.outcomes


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_password_never_reaches_the_directory(directory, way):
    """A bind without a password would succeed for anybody; nor does one that ends with a NUL count as a shorter one."""
    async with backend(directory.settings(**WAYS[way])) as ldap:
        for secret in ("", "\0", "\0ann-secret", "ann-secret\0", "ann-secret\0x"):
            with pytest.raises(LoginRefusedError):
                await ldap.log_in("ann", Password(secret))


async def test_a_directory_is_not_asked_with_a_name_alone(directory):
    """The driver refuses to bind with a name and without a password, whoever asks it to."""
    async with backend(directory.settings()) as ldap:
        for dn, password in (("uid=ann", b""), ("", b"x")):
            with (
                pytest.raises(ValueError, match="need each other"),
                ldap._directory.bound(None, dn, password),
            ):
                pass


GROUPED = {
    "vhost_access": '{in_group, "cn=${vhost},ou=groups,dc=example,dc=com"}',
    "resource_access": '{for, [{permission, configure, {equals, {attribute, "${user_dn}", "description"}, "may declare"}},'
    ' {permission, write, {match, "${name}", "^${username}-"}}, {permission, read, {exists, "uid=${name},'
    + PEOPLE
    + '"}}]}',
    "topic_access": '{match, "${routing_key}", "^${username}\\\\."}',
    "tags": '[{administrator, {in_group, "cn=admins,ou=groups,dc=example,dc=com"}},'
    ' {management, {in_group_nested, "CN=staff, ou=groups,dc=example,dc=com"}}]',
}


@pytest.mark.parametrize("way", ["pattern", "pattern as user", "anonymous lookup"])
async def test_groups_and_attributes_decide(directory, way):
    """Tags, virtual hosts, objects and routing keys follow from groups, nested ones, too, attributes and entries."""
    settings = directory.settings(queries=GROUPED, group_lookup_base=GROUPS, **WAYS[way])
    async with backend(settings) as ldap:
        ann = await ldap.log_in("ann", Password("ann-secret"))
        bob = await ldap.log_in("bob", Password("bob-secret"))
        assert ("administrator", "management") == ann.tags
        assert ("management",) == bob.tags
        assert [True, False] == [await ldap.may_access(each, "admins", "") for each in (ann, bob)]
        assert [False, True] == [await ldap.may_access(each, "v1", "") for each in (ann, bob)]
        questions = [
            Question("configure", "queue", "x"),
            Question("write", "exchange", "bob-x"),
            Question("read", "queue", "ann"),
            Question("read", "queue", "none"),
            Question("write", "topic", "amq.topic", "ann.x"),
        ]
        assert [True, False, True, False, True] == [await ldap.may(ann, "/", each) for each in questions]
        assert [False, True, True, False, False] == [await ldap.may(bob, "/", each) for each in questions]


async def test_names_of_objects_are_no_injections(directory):
    """No name of a virtual host or a queue reads as another entry; what the directory refuses is refused, not an error."""
    queries = GROUPED | {"resource_access": '{exists, "uid=${name},ou=people,dc=example,dc=com"}'}
    async with backend(directory.settings(queries=queries, group_lookup_base=GROUPS)) as ldap:
        guarded = Guarded(ldap, slapd.SECONDS, asyncio.get_running_loop().time)
        ann = await guarded.log_in("ann", Password("ann-secret"))
        for name in INJECTIONS:
            vhost = name.replace("ann", "admins").replace("\\61nn", "\\61dmins")
            assert not await guarded.may_access(ann, vhost, "")
            assert not await guarded.may(ann, "/", Question("read", "queue", name))
        assert await guarded.may_access(ann, "admins", "")
        assert 0 == guarded.outcomes["failed"]


async def test_users_without_a_password_are_looked_for(directory):
    """Users whom a certificate has authenticated have to be in the directory; several entries are none."""
    async with backend(directory.settings(queries=GROUPED, group_lookup_base=GROUPS)) as ldap:
        assert ("administrator", "management") == (await ldap.find("ann")).tags
        with pytest.raises(LoginRefusedError):
            await ldap.find("nobody")
    mail = LOOKUP | {"dn_lookup_attribute": "mail", "dn_lookup_bind": BROKER}
    async with backend(directory.settings(**mail)) as ldap:
        assert f"uid=ann,{PEOPLE}" == (await ldap.find("ann@example.com")).data.dn
        assert f"uid=bob,{PEOPLE}" == (await ldap.log_in("bob@example.com", Password("bob-secret"))).data.dn
        for secret in ("twin1-secret", "twin2-secret"):
            with pytest.raises(LoginRefusedError):
                await ldap.log_in("twin@example.com", Password(secret))
        with pytest.raises(LoginRefusedError):
            await ldap.find("twin@example.com")
    async with backend(directory.settings(other_bind=Bind())) as ldap:
        with pytest.raises(LoginRefusedError):
            await ldap.find("ann")


async def test_a_wrong_password_of_the_broker_is_a_failure(directory):
    """If the directory refuses the broker itself, nobody is let in, and it is the backend that failed."""
    wrong = Bind("entry", BROKER.dn, "wrong")
    async with backend(
        directory.settings(queries=GROUPED, group_lookup_base=GROUPS, other_bind=wrong)
    ) as ldap:
        with pytest.raises(BackendError, match="refuses the broker's own password"):
            await ldap.log_in("ann", Password("ann-secret"))


async def test_a_user_who_has_no_entry_is_in_no_group(directory, monkeypatch):
    """A login by another name than a DN, which some directories accept, does not pass a query that excludes a group."""
    banned = "{'not', {in_group, \"cn=admins,ou=groups,dc=example,dc=com\"}}"
    settings = directory.settings(queries={"vhost_access": banned}, user_dn_pattern="${username}")
    async with backend(settings) as ldap:
        for name, expected in ((f"uid=bob,{PEOPLE}", True), (f"uid=ann,{PEOPLE}", False)):
            login = await ldap.log_in(name, Password(f"{name[4:7]}-secret"))
            assert expected is await ldap.may_access(login, "/", "")

        bound = ldap._directory.bound

        def by_mail(question, dn="", password=b""):
            return bound(question, f"uid=ann,{PEOPLE}" if dn == "ann@example.com" else dn, password)

        monkeypatch.setattr(ldap._directory, "bound", by_mail)
        login = await ldap.log_in("ann@example.com", Password("ann-secret"))
        assert not await ldap.may_access(login, "/", "")


async def test_domains_of_active_directory_are_variables(directory):
    """A name with a domain sets two variables; a name without a domain is refused where a pattern needs them."""
    async with backend(directory.settings(user_dn_pattern=f"uid=${{ad_user}},{PEOPLE}")) as ldap:
        assert "EXAMPLE\\ann" == (await ldap.log_in("EXAMPLE\\ann", Password("ann-secret"))).name
        for name in ("ann", "\\ann", "a\\b\\ann", "EXAMPLE\\ann,ou=people"):
            with pytest.raises(LoginRefusedError):
                await ldap.log_in(name, Password("ann-secret"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tls": {"ca": True}}, None),
        ({"tls": {"ca": True}, "use_starttls": True}, None),
        ({"tls": {"ca": False}}, "certificate is not accepted"),
        ({"tls": {"ca": False}, "use_starttls": True}, "certificate is not accepted"),
        ({"tls": {"ca": True}, "servers": ("127.0.0.1",)}, "certificate is not accepted"),
        (
            {"tls": {"ca": True}, "servers": ("127.0.0.1",), "use_starttls": True},
            "certificate is not accepted",
        ),
        ({"tls": {"ca": True, "sni": "localhost"}, "servers": ("127.0.0.1",)}, None),
        ({"tls": {"ca": True, "sni": "other.example.com"}}, "certificate is not accepted"),
        ({"tls": {"ca": False, "verify": "verify_none"}}, None),
    ],
)
async def test_the_certificate_of_a_directory_is_verified(directory, more, reason, tmp_path):
    """With TLS and StartTLS, a certificate of another authority or for another name is refused, before any password."""
    options = dict(more["tls"])
    authority = directory.authority if options.pop("ca") else Authority(tmp_path, "other")
    tls = ClientTLS(cacertfile=authority.file, **options)
    rest = {"servers": ("localhost",), "use_ssl": not more.get("use_starttls", False)} | more | {"tls": tls}
    port = directory.tls_port if rest["use_ssl"] else directory.port
    async with backend(directory.settings(port=port, **rest)) as ldap:
        if reason is None:
            assert "ann" == (await ldap.log_in("ann", Password("ann-secret"))).name
        else:
            with pytest.raises(BackendError, match=reason):
                await ldap.log_in("ann", Password("ann-secret"))


async def test_the_first_server_that_can_be_reached_is_asked(directory):
    """A server that is down costs an attempt, and the next one decides."""
    settings = directory.settings(servers=("127.0.0.2", "127.0.0.1"))
    async with backend(settings) as ldap:
        assert "ann" == (await ldap.log_in("ann", Password("ann-secret"))).name


async def test_no_line_of_the_log_has_a_password(directory, caplog):
    """With `auth_ldap.log` each login and each decision is logged, without any password."""
    caplog.set_level(logging.DEBUG)
    settings = directory.settings(
        queries=GROUPED, group_lookup_base=GROUPS, log=True, **(WAYS["lookup"] | {"other_bind": BROKER})
    )
    async with backend(settings) as ldap:
        ann = await ldap.log_in("ann", Password("ann-secret"))
        await ldap.may_access(ann, "admins", "")
        with pytest.raises(LoginRefusedError):
            await ldap.log_in("ann", Password("bad-secret"))
    assert f"LDAP: 'ann' is uid=ann,{PEOPLE}, tags: administrator management" in caplog.text
    assert f"LDAP: 'ann' (uid=ann,{PEOPLE}): vhost='admins': allowed" in caplog.text
    assert "LDAP: 'ann' is refused: the directory refuses the password" in caplog.text
    assert "secret" not in caplog.text
    assert "secret" not in repr((ann, settings.tls))


async def test_clear_text_is_warned_about(directory, caplog):
    """Passwords that leave the host in clear text are worth a warning."""
    for servers, more in (
        (("localhost", "127.0.0.1", "::1"), {}),
        (("far.example.com",), {"use_starttls": True}),
    ):
        async with backend(directory.settings(servers=servers, **more)):
            pass
    assert "" == caplog.text
    async with backend(directory.settings(servers=("far.example.com",))):
        pass
    assert "passwords are sent to far.example.com in clear text" in caplog.text


@pytest.mark.parametrize("other", [BROKER, Bind()])
async def test_a_broker_with_a_directory(directory, other):
    """Clients log in, and their operations are decided, by AMQP and by the management API, with and without the cache."""
    ldap = directory.settings(
        queries=GROUPED | {"vhost_access": "{constant, true}"}, group_lookup_base=GROUPS, other_bind=other
    )
    cached = chain("cache", ldap=ldap, cache=CacheSettings(authn="ldap", authz="ldap"))
    for settings in (chain("internal", "ldap", ldap=ldap), cached):
        async with broker(settings) as server:
            connection = await connect(server, "ann")
            channel = await connection.channel()
            await channel.queue_declare("ann-q")
            await connection.close()
            connection = await connect(server, "bob")
            channel = await connection.channel()
            with pytest.raises(aiormq.exceptions.ChannelAccessRefused) as refused:
                await channel.queue_declare("bob-q")
            assert "configure access to queue 'bob-q' in vhost '/' refused for user 'bob'" in str(
                refused.value
            )
            await connection.close()
            for name, password in (("ann", "bad"), ("ann", ""), ("nobody", "x")):
                with pytest.raises(aiormq.exceptions.AMQPError):
                    await connect(server, name, password)
            management = ManagementServer(server, ROUTER)
            await management.start("127.0.0.1", 0)
            url = f"http://127.0.0.1:{management.address[1]}/api/whoami"
            async with aiohttp.ClientSession() as client, asyncio.timeout(SECONDS):
                for name, status in (("ann", 200), ("bob", 200), ("twin1", 401)):
                    headers = {"authorization": aiohttp.encode_basic_auth(name, f"{name}-secret")}
                    async with client.get(url, headers=headers) as answer:
                        assert status == answer.status, name
            await management.stop()


@pytest.mark.parametrize("use_ssl", [False, True])
async def test_questions_are_sent_at_once(directory, use_ssl):
    """A question does not wait for the acknowledgement of the packet before it, which takes 40 ms after a handshake."""
    tls = ClientTLS(cacertfile=directory.authority.file)
    port = directory.tls_port if use_ssl else directory.port
    settings = directory.settings(servers=("localhost",), port=port, use_ssl=use_ssl, tls=tls)
    async with backend(settings) as ldap:
        question = Asked()
        with ldap._directory.bound(question, BROKER.dn, BROKER.password.encode()) as bound:
            assert bound._connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        question.close()
