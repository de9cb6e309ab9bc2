"""The configuration keys of the LDAP backend."""

from typing import Final

from leveret.broker.config.key import Key

_QUERIES = "RabbitMQ 3.13 has it in advanced.config"

LDAP: Final[tuple[Key, ...]] = (
    Key(name="auth_ldap.servers.$name", kind="string", default="",
        doc="A server of the directory, `auth_ldap.servers.1 = ldap.example.com` and so on: the first one that can be "
        "reached is asked."),
    Key(name="auth_ldap.port", kind="int", default="", low=1, high=65535, attribute="backends.ldap.port",
        doc="Port of all servers; 389 if not set, with `use_ssl` 636. RabbitMQ's default is always 389."),
    Key(name="auth_ldap.use_ssl", kind="bool", default="false", attribute="backends.ldap.use_ssl",
        doc="Connect with TLS (`ldaps`)."),
    Key(name="auth_ldap.use_starttls", kind="bool", default="false", attribute="backends.ldap.use_starttls",
        doc="Connect without TLS, and begin TLS before anything else is sent (StartTLS)."),
    Key(name="auth_ldap.timeout", kind="duration", default="5s", unit="ms", low=0, attribute="backends.ldap.timeout",
        doc="Time after which a question has failed, with the time that it waits for its turn. RabbitMQ has no limit "
        "by default."),
    Key(name="auth_ldap.connection_pool_size", kind="int", default="8", low=1, high=64,
        attribute="backends.ldap.connection_pool_size",
        doc="Questions that are under way at once, each with a thread and connections of its own, which are closed "
        "afterwards. RabbitMQ keeps 64 connections."),
    Key(name="auth_ldap.user_dn_pattern", kind="string", default="${username}",
        attribute="backends.ldap.user_dn_pattern",
        doc="The entry (DN) of a user, such as `uid=${username},ou=people,dc=example,dc=com`. Names are escaped as the "
        "value of an attribute. With `dn_lookup_attribute` the value that is looked for."),
    Key(name="auth_ldap.user_bind_pattern", kind="string", default="", attribute="backends.ldap.user_bind_pattern",
        doc="The name that users bind with, if it is another one, such as `${ad_user}@example.com`."),
    Key(name="auth_ldap.dn_lookup_attribute", kind="string", default="none",
        attribute="backends.ldap.dn_lookup_attribute",
        doc="The entry of a user is the one whose attribute of this name is `user_dn_pattern`; none or several are a "
        "refusal (in RabbitMQ then the pattern is the entry)."),
    Key(name="auth_ldap.dn_lookup_base", kind="string", default="none", attribute="backends.ldap.dn_lookup_base",
        doc="The entry below which it is looked for."),
    Key(name="auth_ldap.dn_lookup_bind", kind="choice", default="as_user", choices=("as_user", "anon"),
        doc="`as_user`: it is looked for after the login, as the user; `anon`: before it, anonymously."),
    Key(name="auth_ldap.dn_lookup_bind.user_dn", kind="string", default="",
        doc="An entry that looks for it before the login."),
    Key(name="auth_ldap.dn_lookup_bind.password", kind="string", default="", secret=True, doc="Its password."),
    Key(name="auth_ldap.group_lookup_base", kind="string", default="none",
        attribute="backends.ldap.group_lookup_base",
        doc="The entry below which `in_group_nested` looks for groups; `dn_lookup_base` if not set."),
    Key(name="auth_ldap.other_bind", kind="choice", default="as_user", choices=("as_user", "anon"),
        doc="The entry that asks the queries: the user's own, for which the broker keeps the passwords of connected "
        "users in memory, or none (`anon`). Users without a password (`EXTERNAL`) need `anon` or an entry."),
    Key(name="auth_ldap.other_bind.user_dn", kind="string", default="", doc="An entry that asks the queries."),
    Key(name="auth_ldap.other_bind.password", kind="string", default="", secret=True, doc="Its password."),
    Key(name="auth_ldap.queries.vhost_access", kind="string", default="", origin="Leveret",
        doc=f"The query that allows access to a virtual host, such as `{{constant, true}}`; {_QUERIES}. It must be set "
        "if `ldap` decides about permissions: RabbitMQ allows everything by default."),
    Key(name="auth_ldap.queries.resource_access", kind="string", default="", origin="Leveret",
        doc=f"The query that allows an operation on a queue or exchange; {_QUERIES}. It must be set, too."),
    Key(name="auth_ldap.queries.topic_access", kind="string", default="{constant, true}", origin="Leveret",
        doc=f"The query that allows a routing key at a topic exchange; {_QUERIES}."),
    Key(name="auth_ldap.queries.tags", kind="string", default="[]", origin="Leveret",
        doc='Queries by tag, such as `[{administrator, {in_group, "cn=admins,dc=example,dc=com"}}]`; RabbitMQ 3.13 '
        "has `tag_queries` in advanced.config."),
    Key(name="auth_ldap.log", kind="choice", default="false", choices=("false", "true", "network"),
        doc="Log each login and each decision, with names. `network` is the same as `true`. Passwords are never "
        "logged, and `network_unsafe` is an error."),
    Key(name="auth_ldap.ssl_options.cacertfile", kind="path", default="", attribute="backends.ldap.tls.cacertfile",
        doc="Certificates of authorities that the directory's certificate is verified with; those of the system by "
        "default."),
    Key(name="auth_ldap.ssl_options.certfile", kind="path", default="", attribute="backends.ldap.tls.certfile",
        doc="Certificate of the broker towards the directory."),
    Key(name="auth_ldap.ssl_options.keyfile", kind="path", default="", attribute="backends.ldap.tls.keyfile",
        doc="Its key."),
    Key(name="auth_ldap.ssl_options.password", kind="string", default="", attribute="backends.ldap.tls.password",
        secret=True, doc="Password of the key."),
    Key(name="auth_ldap.ssl_options.verify", kind="choice", default="verify_peer",
        choices=("verify_peer", "verify_none"), attribute="backends.ldap.tls.verify",
        doc="`verify_none`: do not verify the directory's certificate."),
    Key(name="auth_ldap.ssl_options.sni", kind="string", default="", attribute="backends.ldap.tls.sni",
        doc="Name that the directory's certificate must have; that of the server by default."),
)  # fmt: skip
