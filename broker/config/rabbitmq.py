"""RabbitMQ's configuration: its keys, environment, plugins and Erlang terms, and what is said of those without effect.

An existing rabbitmq.conf should load if that loses nothing, and should not if it does: a key that protects something
(it encrypts, authenticates, or limits access) and has no effect here is an error, because the administrator relies on
it. Any other key causes a warning. A value that requests only what happens anyway is accepted silently in either case.
docs/configuration.md has the table (`make docs`).

Its variables, rabbitmq-env.conf, the list of plugins and advanced.config are judged alike. A variable of RabbitMQ's
without a row is harmless; others that begin with RABBITMQ_ are those of applications and container platforms.

`[{rabbit, [{consumer_timeout, 3600000}]}].` and `-rabbit consumer_timeout 3600000` mean `consumer_timeout = 3600000` of
rabbitmq.conf: so each setting of an application becomes those of the keys that mean the same, and these are judged as
all others are. Lists of pairs become names with dots, other lists numbered names; `_settings_of` has what has another
form in rabbitmq.conf. Settings of the runtime have no effect here, and are harmless. One that no key stands for is a
warning, or an error if its name says that it protects something.

Sources: the schemas of RabbitMQ 3.13 and 4.3 (`rabbit.schema`, `rabbitmq_management.schema`, ...), which translate keys
to these settings.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.broker.config.values import DEFAULT_PORT, Listener, Setting, read_text
from leveret.broker.erlang_terms import parsed, parsed_several, written
from leveret.exchanges.erlang_hash import Atom

SUFFIX: Final = ".config"  # the ending of files in the form of Erlang
_PREFIXES: Final[Mapping[str, str]] = {  # how keys begin that stand for the settings of an application
    "rabbit": "",
    "rabbitmq_management": "management.",
    "rabbitmq_management_agent": "management_agent.",
    "rabbitmq_prometheus": "prometheus.",
    "rabbitmq_auth_backend_ldap": "auth_ldap.",
    "rabbitmq_auth_backend_http": "auth_http.",
    "rabbitmq_auth_backend_oauth2": "auth_oauth2.",
    "rabbitmq_auth_backend_cache": "auth_cache.",
    "rabbitmq_event_exchange": "event_exchange.",
    "rabbitmq_shovel": "shovel.",
    "rabbitmq_federation": "federation.",
    "rabbitmq_mqtt": "mqtt.",
    "rabbitmq_web_mqtt": "web_mqtt.",
    "rabbitmq_stomp": "stomp.",
    "rabbitmq_web_stomp": "web_stomp.",
    "rabbitmq_stream": "stream.",
    "rabbitmq_amqp1_0": "amqp1_0.",
    "rabbitmq_trust_store": "trust_store.",
    "rabbitmq_aws": "aws.",
    "amqp_client": "amqp_client.",
    "config_entry_decoder": "config_entry_decoder.",
}
_RUNTIME: Final = frozenset((
    "aten", "cowboy", "cowlib", "crypto", "gen_batch_server", "inets", "kernel", "khepri", "lager",
    "mnesia", "os_mon", "osiris", "prometheus", "public_key", "ra", "ranch", "recon", "sasl", "ssl",
    "stdlib", "sysmon_handler", "syslog", "systemd",
))  # fmt: skip
"""Applications of Erlang that have no settings of a broker."""
_RENAMED: Final = (
    (re.compile(r"(management|prometheus)\.(tcp|ssl)_config\."), r"\1.\2."),
    (re.compile(r"log\.categories\."), "log."),
    (re.compile(r"log_levels\.(\w+)$"), r"log.\1.level"),
    (re.compile(r"log\.file\.file$"), "log.file"),
    (re.compile(r"auth_oauth2\.key_config\."), "auth_oauth2."),
    (re.compile(r"auth_ldap\.(\w+)_access_query$"), r"auth_ldap.queries.\1_access"),
    (re.compile(r"auth_ldap\.tag_queries$"), "auth_ldap.queries.tags"),
)
_UNDEFINED: Final = {"consumer_timeout": "0"}  # values that `undefined` stands for: no limit
_PAIR: Final = 2


def file_settings(path: Path, problems: list[str]) -> Iterator[Setting]:
    """Yield the settings of advanced.config or rabbitmq.config; what cannot be read is added to `problems`."""
    if (text := read_text(path, problems)) is None:
        return
    try:
        applications = parsed(text)
    except ValueError as error:
        hint = (
            f"; settings as `key = value` belong in a file named *.conf, not *{SUFFIX}"
            if " = " in text
            else ""
        )
        problems.append(f"cannot read {path}: {error}{hint}")
        return
    if not _is_pairs(applications):
        problems.append(f"cannot read {path}: expected [{{application, [{{key, value}}]}}].")
        return
    for name, pairs in applications:
        if name in _RUNTIME:
            continue
        if _is_pairs(pairs):
            yield from _application(name, pairs, str(path), path)
        else:
            problems.append(f"{path}: the settings of {name} must be a list of {{key, value}}")


def argument_settings(text: str, origin: str, problems: list[str]) -> Iterator[Setting]:
    """Yield the settings among arguments of Erlang's virtual machine, `-application key value`; as `file_settings`."""
    for argument in re.split(r"(?:^|\s)(?=[-+][a-zA-Z])", text):
        name, _, rest = argument.strip().partition(" ")
        application = name.removeprefix("-")
        if application not in _PREFIXES:
            continue
        try:
            terms = parsed_several(rest)
        except ValueError as error:
            problems.append(f"{origin}: cannot read {name}: {error}")
            continue
        pairs = [*zip(terms[::2], terms[1::2], strict=False)]
        if len(terms) % 2 or not _is_pairs(pairs) or not pairs:
            problems.append(f"{origin}: expected {name} KEY VALUE")
        else:
            yield from _application(application, pairs, origin)


def _application(
    name: str, pairs: list[tuple[str, Any]], origin: str, file: Path | None = None
) -> Iterator[Setting]:
    prefix = _PREFIXES.get(name, f"{name}.")
    for key, value in pairs:
        for made, text in _settings_of(f"{prefix}{key}", value):
            yield Setting(made, text, origin, file, f"{name}.{key}")


def _settings_of(key: str, value: Any) -> Iterator[tuple[str, str]]:  # noqa: C901, PLR0912 - a table
    """Yield the keys and values of rabbitmq.conf that a setting stands for, which there may have another form."""
    for pattern, name in _RENAMED:
        key = pattern.sub(name, key)
    match key, value:
        case (("tcp_listeners" | "ssl_listeners"), _):
            name = f"listeners.{key[:3]}"
            if value == []:
                yield name, "none"
            for number, each in enumerate(_listed(value), 1):
                match each:
                    case (str() as host, int() as port):
                        yield f"{name}.{number}", str(Listener(host, port))
                    case _:
                        yield f"{name}.{number}", _text(each)
        case (
            ("vm_memory_high_watermark" | "disk_free_limit"),
            (Atom("absolute" | "relative") as kind, amount),
        ):
            yield f"{key}.{kind}", _text(amount)
        case (("vm_memory_high_watermark" | "disk_free_limit"), (Atom("mem_relative"), share)):
            yield f"{key}.relative", _text(share)
        case "vm_memory_high_watermark", float():
            yield f"{key}.relative", _text(value)
        case (("vm_memory_high_watermark" | "disk_free_limit"), _):
            yield f"{key}.absolute", _text(value)
        case (("loopback_users" | "default_user_tags"), _):
            if key == "loopback_users":
                yield key, "none"
            for each in _listed(value):
                yield f"{key}.{_text(each)}", "true"
        case "default_permissions", [_, _, _]:
            for verb, names in zip(("configure", "write", "read"), value, strict=True):
                yield f"{key}.{verb}", _text(names)
        case "auth_backends", _:
            for number, each in enumerate(_listed(value), 1):
                match each:
                    case (str() as authn, str() as authz):
                        yield f"{key}.{number}.authn", authn
                        yield f"{key}.{number}.authz", authz
                    case _:
                        yield f"{key}.{number}", _text(each)
        case "tcp_listen_options", _:
            for each in _listed(value):
                yield from _socket_option(key, each)
        case (("auth_ldap.dn_lookup_bind" | "auth_ldap.other_bind"), (str() as user, str() as password)):
            yield f"{key}.user_dn", user
            yield f"{key}.password", password
        case _ if key.startswith("auth_ldap.queries."):
            yield key, written(value)
        case "config_entry_decoder.passphrase", (Atom("file"), str() as name):
            yield f"{key}_file", name
        case _:
            yield from _flat(key, value)


def _socket_option(key: str, option: Any) -> Iterator[tuple[str, str]]:
    match option:
        case (Atom("linger"), (on, seconds)):
            yield f"{key}.linger.on", _text(on)
            yield f"{key}.linger.timeout", _text(seconds)
        case (Atom("packet" | "reuseaddr"), _) | Atom("binary"):
            pass  # what every broker does
        case (str() as name, value):
            yield f"{key}.{name}", _text(value)
        case _:
            yield key, _text(option)


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a term: below its own name, if it is a list."""
    match value:
        case (Atom("encrypted"), str() as text):
            yield key, f"encrypted:{text}"
        case [_, *_] if _is_pairs(value):
            for name, each in value:
                yield from _settings_of(f"{key}.{name}", each)
        case [_, *_] if not any(isinstance(each, list | tuple) for each in value):
            for number, each in enumerate(value, 1):
                yield f"{key}.{number}", _text(each)
        case Atom("undefined") if key in _UNDEFINED:
            yield key, _UNDEFINED[key]
        case _:
            yield key, _text(value)


def _text(value: Any) -> str:
    return written(value) if isinstance(value, list | tuple) else str(value)


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, tuple) and len(each) == _PAIR and isinstance(each[0], str) for each in value
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that have no effect, for one reason.

    ``keys`` may contain a ``*``, which matches any text, also none. ``why`` follows "is not supported: ". ``nothing``
    lists values that request nothing. ``refused``: any other value is an error instead of a warning.
    """

    keys: tuple[str, ...]
    why: str
    nothing: tuple[str, ...] = ()
    refused: bool = False


def _protects(*keys: str, why: str, nothing: tuple[str, ...] = ()) -> Foreign:
    return Foreign(keys=keys, why=why, nothing=nothing, refused=True)


def _other(*keys: str, why: str, nothing: tuple[str, ...] = ()) -> Foreign:
    return Foreign(keys=keys, why=why, nothing=nothing)


FOREIGN: Final[tuple[Foreign, ...]] = (
    # Encryption and authentication.
    _protects("ssl_options.cert", "ssl_options.cacerts.*", "ssl_options.key.*", "ssl_options.psk_identity",
              "ssl_options.crl_sources.*", "management.ssl.cert", "management.ssl.key.*", "management.ssl.cacerts.*",
              "management.ssl.psk_identity", "prometheus.ssl.cert", "prometheus.ssl.key.*", "prometheus.ssl.cacerts.*",
              "prometheus.ssl.psk_identity",
              why="certificates and keys are read from files: `certfile`, `keyfile` and `cacertfile`"),
    _protects("ssl_options", nothing=("none",), why="remove the listeners.ssl keys to run without TLS"),
    _protects("management.listener.ssl_opts", nothing=("none",),
              why="remove `management.listener.ssl` to run without TLS"),
    _protects("amqp_client.ssl_options", "amqp_client.ssl_options.*", nothing=("none",),
              why="the TLS of a shovel is set in its URIs (`verify`, `cacertfile`, `certfile`)"),
    _protects("http_dispatch.auth_backends.*", why="`auth_backends.*` are those of the management API, too"),
    _protects("management.restrictions.operator_policy_changes.disabled", nothing=("false",),
              why="administrators may change operator policies"),
    _other("management.restrictions.quorum_queue_replica_operations.disabled", nothing=("true", "false"),
           why="there are no such operations"),
    _protects("management.hsts.policy", why="a proxy before the API can add this header"),
    _other("management.csp.policy", "management.headers.*", nothing=("DENY", "nosniff", "no-referrer"),
           why="the headers of the page allow least, and cannot be changed"),
    _other("management.require_auth_for_api_reference", nothing=("true", "false"), why="the reference has no secrets"),
    _other("credentials_obfuscation.*", nothing=("true", "false"), why="no password appears in logs and errors"),
    _other("ssl_options.client_renegotiation", "management.ssl.client_renegotiation",
           "prometheus.ssl.client_renegotiation", "ssl_allow_poodle_attack", nothing=("false",),
           why="renegotiation and old versions of TLS are always refused"),
    _other("ssl_options.secure_renegotiate", "management.ssl.secure_renegotiate", "prometheus.ssl.secure_renegotiate",
           nothing=("true",), why="renegotiation is always refused"),
    _other("ssl_options.dh", "ssl_options.honor_ecc_order", "ssl_options.bypass_pem_cache", "ssl_options.log_*",
           "management.ssl.dh", "management.ssl.honor_ecc_order", "management.ssl.backlog", "management.ssl.log_*",
           "management.ssl.compress", "management.ssl.max_*", "management.ssl.*_timeout",
           "prometheus.ssl.dh", "prometheus.ssl.honor_ecc_order", "prometheus.ssl.backlog", "prometheus.ssl.log_*",
           "prometheus.ssl.compress", "prometheus.ssl.max_*", "prometheus.ssl.*_timeout",
           why="OpenSSL has no such setting, or it is not configurable"),
    _other("auth_ldap.idle_timeout", why="connections to a directory are not kept"),
    _other("auth_cache.cache_module", "auth_cache.cache_module_args",
           "auth_http.ssl_options.hostname_verification", "auth_http.ssl_options.fail_if_no_peer_cert",
           "auth_ldap.ssl_options.hostname_verification",
           "auth_ldap.ssl_options.fail_if_no_peer_cert", "auth_ldap.ssl_options.client_renegotiation",
           "auth_ldap.ssl_options.secure_renegotiate", "auth_ldap.ssl_options.reuse_sessions",
           "auth_ldap.ssl_options.honor_*", "auth_ldap.ssl_options.log_*", "auth_ldap.ssl_options.dh*",
           nothing=("rabbit_auth_cache_ets", "wildcard", "true"), why="there is no counterpart"),
    _protects("auth_oauth2.oauth_providers.*", "auth_oauth2.default_oauth_provider",
              "auth_oauth2.resource_servers.*.oauth_provider_id", why="there is one issuer, `auth_oauth2.issuer`"),
    _protects("auth_oauth2.resource_server_type", "auth_oauth2.resource_servers.*.resource_server_type",
              why="the claim `authorization_details` of tokens is not read, so that users would have fewer rights"),
    _protects("auth_oauth2.opaque_token_signing_key.*", "auth_oauth2.introspection_*",
              why="tokens have to be signed by the issuer (JWT)"),
    _protects("auth_oauth2.https.verify", "auth_oauth2.https.peer_verification",
              "auth_oauth2.https.hostname_verification", "auth_oauth2.https.fail_if_no_peer_cert",
              nothing=("verify_peer", "wildcard", "true"),
              why="the certificate of the issuer is always verified, with its name"),
    _other("auth_oauth2.token_endpoint", "auth_oauth2.authorization_endpoint", "auth_oauth2.end_session_endpoint",
           why="the addresses are found by the OpenID configuration, see `management.oauth_metadata_url`"),
    _other("auth_http.authorization_failure_disclosure", nothing=("false",),
           why="answers to clients do not have the reasons of backends"),
    _protects("auth_backends.*", "auth_http.*", "auth_ldap.*", "auth_oauth2.*", "auth_cache.*", "trust_store.*",
              why="there is no such setting of authentication backends here"),
    _protects("prometheus.authentication.*", nothing=("false",),
              why="the metrics listener has no authentication; bind `prometheus.tcp.ip` to an address that only "
              "trusted hosts can reach, or demand certificates by `prometheus.ssl.verify`"),
    _protects("definitions.https.*", "definitions.tls.*", why="definitions are loaded from local files only"),
    # Limits.
    _protects("default_policies.*", why="define operator policies in a definitions file"),
    _protects("node_queue_limit",
              "ranch_connection_max", "runtime_parameters.limits.*", "session_max_per_connection",
              "link_max_per_session", nothing=("infinity",),
              why="this limit is not supported"),
    # Other protocols and plugins, which do not exist here.
    _other("mqtt.*", "web_mqtt.*", "stomp.*", "web_stomp.*", "stream.*", "amqp1_0.*", "amqp10_client.*",
           "amqp_client.*", "federation.*", "aws.*", "peer_discovery.*",
           "event_exchange.protocol", "tracing.*", nothing=("none",), why="this protocol or plugin is not supported"),
    _other("shovel.*", why="shovels are parameters of virtual hosts; their topology has no such settings"),
    _other("management.*", "management_agent.*", "http_dispatch.*", why="not configurable"),
    _other("prometheus.path", "prometheus.tcp.listener", "prometheus.tcp.max_*", "prometheus.tcp.compress",
           "prometheus.tcp.*_timeout", "prometheus.filter_*", why="not configurable"),
    # Clustering.
    _other("cluster_formation.*", "cluster_partition_handling", "cluster_partition_handling.*",
           "cluster_keepalive_interval", "distribution.*", "net_ticktime", "mirroring_sync_*",
           "mnesia_table_loading_retry_*", "queue_leader_locator", "queue_master_locator", "quorum_queue.*",
           "quorum_cluster_size", "raft.*", "metadata_store.*", "prevent_startup_if_node_was_reset",
           nothing=("ignore",), why="clustering is not supported; see `replication.url` for a log of several nodes"),
    # Sockets.
    _other("listeners.startup_delay", nothing=("0",), why="listeners open when all data are loaded"),
    _other("num_acceptors.*", why="connections are accepted by a single event loop"),
    _other("reverse_dns_lookups", nothing=("false",), why="client addresses are not resolved to names"),
    _other("tcp_listen_options", "tcp_listen_options.buffer", "tcp_listen_options.delay_send",
           "tcp_listen_options.dontroute", "tcp_listen_options.exit_on_close", "tcp_listen_options.fd",
           "tcp_listen_options.high_*", "tcp_listen_options.low_*",
           "tcp_listen_options.port", "tcp_listen_options.priority",
           "tcp_listen_options.tos", nothing=("false",), why="this socket option is not supported"),
    # Memory, disk and queues.
    _other("vm_memory_calculation_strategy", "memory_monitor_interval", "disk_monitor*",
           nothing=("rss", "allocated"), why="memory and disk monitoring is not configurable"),
    _other("total_memory_available_override_value",
           why="the memory of the machine or container is used; see `vm_memory_high_watermark.absolute`"),
    _other("background_gc_*", "socket_writer.*", "message_store_shutdown_timeout", "msg_store_*",
           "classic_queue.*", "vhost_restart_strategy", "default_worker_pool_size",
           "delegate_count", why="there is no counterpart"),
    _other("consumer_disconnected_timeout", why="streams and quorum queues have no leaders on other nodes"),
    _other("queue_types.*", "exchange_types.*", nothing=("true",), why="the types are fixed"),
    _other("deprecated_features.*", "feature_flags.*", nothing=("true",),
           why="use `compatibility.*`; `transient_nonexcl_queues` and `global_qos` are obeyed"),
    _other("message_interceptors.*", "channel_interceptor.*",
           why="there are two interceptors of incoming messages, set_header_timestamp and set_header_routing_node"),
    _other("definitions.skip_if_unchanged", "definitions.hashing.*", nothing=("false",),
           why="definitions are imported at each start"),
    # Settings of the Erlang runtime or its logger without a counterpart.
    _other("collect_statistics", "erlang.*", "hipe_compile", "motd_file", "product.*",
           "runtime.*", "sysmon_handler.*", "systemd.*", why="setting of the Erlang runtime"),
    _other("log.connection.rotation.*", "log.channel.rotation.*", "log.queue.rotation.*", "log.default.rotation.*",
           "log.*.file", "log.*.formatter.*", "log.exchange", "log.exchange.*", "log.journald",
           "log.journald.*", "log.syslog", "log.syslog.*", "log.console.color_esc_seqs.*", "log.console.use_colors",
           "log.federation.*", "log.mirroring.*", "log.ra.*", "log.upgrade.*", "log.prelaunch.*", "log.ldap.*",
           "log.user.*", "log.summarize_process_state", "log.error_logger_format_depth", nothing=("false",),
           why="logs are written to the console and to one file only"),
)  # fmt: skip

FOREIGN_VARIABLES: Final[tuple[Foreign, ...]] = (
    _protects("RABBITMQ_DEFAULT_PASS_FILE", "RABBITMQ_DEFAULT_USER_FILE", "RABBITMQ_SSL_*", "RABBITMQ_MANAGEMENT_SSL_*",
              "RABBITMQ_VM_MEMORY_HIGH_WATERMARK",
              why="use a configuration file, such as one in /etc/rabbitmq/conf.d, as for RabbitMQ's image since 3.9"),
    _other("RABBITMQ_USERNAME", "RABBITMQ_PASSWORD", "RABBITMQ_PASSWORD_FILE", "RABBITMQ_SECURE_PASSWORD",
           why="it is a variable of Bitnami's image: use RABBITMQ_DEFAULT_USER and RABBITMQ_DEFAULT_PASS"),
    _other("RABBITMQ_LOAD_DEFINITIONS", "RABBITMQ_DEFINITIONS_FILE", nothing=("no", "false"),
           why="it is a variable of Bitnami's image: use the key `load_definitions`"),
    _other("RABBITMQ_PLUGINS", "RABBITMQ_COMMUNITY_PLUGINS", "RABBITMQ_VHOST", "RABBITMQ_VHOSTS",
           "RABBITMQ_DISK_FREE_RELATIVE_LIMIT", "RABBITMQ_DISK_FREE_ABSOLUTE_LIMIT", "RABBITMQ_EXTRA_*",
           why="it is a variable of Bitnami's image"),
    _other("RABBITMQ_LOG", why="set the levels of the log: `log.console.level`, `log.connection.level` and so on"),
    _other("RABBITMQ_CHANNEL_MAX", why="set the key `channel_max`"),
    _other("RABBITMQ_FEATURE_FLAGS", "RABBITMQ_FEATURE_FLAGS_FILE", "RABBITMQ_FORCED_FEATURE_FLAGS_ON_INIT",
           why="use `compatibility.*`"),
    _other("RABBITMQ_PRODUCT_NAME", "RABBITMQ_PRODUCT_VERSION", "RABBITMQ_MOTD_FILE", why="not configurable"),
    _other("RABBITMQ_QUORUM_DIR", "RABBITMQ_STREAM_DIR", why="all data are in `data_dir`"),
)  # fmt: skip
"""Environment variables. Those of the Erlang runtime and of clustering have no effect, and are harmless: no row."""

PLUGINS: Final = frozenset((
    "accept", "amqp10_client", "amqp10_common", "amqp_client", "cowboy", "cowlib", "oauth2_client", "prometheus",
    "rabbitmq_auth_backend_cache", "rabbitmq_auth_backend_http", "rabbitmq_auth_backend_internal_loopback",
    "rabbitmq_auth_backend_ldap", "rabbitmq_auth_backend_oauth2", "rabbitmq_auth_mechanism_ssl", "rabbitmq_aws",
    "rabbitmq_consistent_hash_exchange", "rabbitmq_delayed_message_exchange", "rabbitmq_event_exchange",
    "rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_peer_discovery_aws",
    "rabbitmq_peer_discovery_common", "rabbitmq_peer_discovery_consul", "rabbitmq_peer_discovery_etcd",
    "rabbitmq_peer_discovery_k8s", "rabbitmq_prelaunch", "rabbitmq_prometheus", "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange", "rabbitmq_shovel", "rabbitmq_shovel_management", "rabbitmq_shovel_prometheus",
    "rabbitmq_top", "rabbitmq_web_dispatch",
))  # fmt: skip
"""Plugins whose features are here, or that a broker without clustering needs not."""
FOREIGN_PLUGINS: Final[tuple[Foreign, ...]] = (
    _protects("rabbitmq_trust_store", "rabbitmq_auth_backend_*", "rabbitmq_auth_mechanism_*",
              why="there is no such plugin for authentication here"),
    _other("*", why="there is no such plugin here"),
)  # fmt: skip


PROTECTS: Final = re.compile(r"ssl|tls|auth|passw|secret|verify|restrict|cert|credential|permission|limit")
"""A part of the names of settings that protect something; for those in the form of Erlang, which may be any."""


def first_row(rows: Iterable[Foreign], written: str) -> Foreign | None:
    """Return the first row that matches a name as written; None if there is none."""
    return next((row for row in rows if any(fnmatchcase(written, key) for key in row.keys)), None)


def foreign_key(written: str) -> Foreign | None:
    """Return the row for a key as written; None if it is not a known key without effect."""
    return first_row(FOREIGN, written)


def judge(row: Foreign, name: str, value: str, problems: list[str], warnings: list[str]) -> None:
    """Add to `problems` or `warnings` that something named has no effect, unless its value requests nothing."""
    if value in row.nothing:
        return
    if row.refused:
        problems.append(f"{name} is not supported: {row.why}. Remove it to run without it")
    else:
        warnings.append(f"{name} is not supported: {row.why}; ignored")


RABBITMQ_VARIABLES: Final = {  # variables, and the keys that they set
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
    "RABBITMQ_NODENAME": "node_name",
    "RABBITMQ_MNESIA_BASE": "data_dir",
    "RABBITMQ_MNESIA_DIR": "data_dir",
    "RABBITMQ_LOG_BASE": "log.dir",
    "RABBITMQ_PID_FILE": "pid_file",
}
ARGUMENTS: Final = (  # arguments of Erlang's virtual machine, among which are settings of applications
    "RABBITMQ_SERVER_ERL_ARGS",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
    "RABBITMQ_SERVER_START_ARGS",
)
ENV_FILE: Final = "RABBITMQ_CONF_ENV_FILE"
ADVANCED: Final = "RABBITMQ_ADVANCED_CONFIG_FILE"
ENABLED_PLUGINS: Final = "RABBITMQ_ENABLED_PLUGINS"
ENABLED_PLUGINS_FILE: Final = "RABBITMQ_ENABLED_PLUGINS_FILE"
_ASSIGNMENT: Final = re.compile(
    r"\s*(?:export\s+)?(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>'[^'$`]*'|\"[^\"$`\\]*\"|[^\s'\"$`\\;&|]*)(?:\s+#.*)?\s*"
)


def with_env_file(environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> Mapping[str, str]:
    """Return the environment with the variables of rabbitmq-env.conf, which need not begin with RABBITMQ_.

    The environment wins, as in RabbitMQ. Of the language of the shell only assignments of plain values are read.
    """
    name = environ.get(ENV_FILE)
    text = read_text(Path(name), problems, may_miss=True) if name else None
    if text is None:
        return environ
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if assigned := _ASSIGNMENT.fullmatch(line):
            found[f"RABBITMQ_{assigned['name'].removeprefix('RABBITMQ_')}"] = assigned["value"].strip("'\"")
        else:
            warnings.append(f"{name}:{number}: only NAME=value is read of the shell's language; ignored")
    return {**found, **environ}


def settings_of(environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> Iterator[Setting]:
    """Yield the settings of RabbitMQ's variables, and of the files that they name beside rabbitmq.conf.

    `problems` gets a sentence about each that protects something and has no effect, `warnings` about each other one.
    """
    if name := environ.get(ADVANCED):
        yield from file_settings(Path(name if name.endswith(SUFFIX) else name + SUFFIX), problems)
    for variable in ARGUMENTS:
        yield from argument_settings(environ.get(variable, ""), variable, problems)
    port, host = environ.get("RABBITMQ_NODE_PORT"), environ.get("RABBITMQ_NODE_IP_ADDRESS")
    if port or host:
        host = f"[{host}]" if host and ":" in host else host
        listener = f"{host}:{port or DEFAULT_PORT}" if host else str(port)
        yield Setting("listeners.tcp.default", listener, "RABBITMQ_NODE_PORT")
    for variable, key in RABBITMQ_VARIABLES.items():
        if value := environ.get(variable):
            yield Setting(key, value, variable)
    if logs := environ.get("RABBITMQ_LOGS"):
        # '-' is the console and overrides log.*; otherwise it is the name of the file.
        yield Setting("log.console", "true" if logs == "-" else "false", "RABBITMQ_LOGS")
        yield Setting("log.file", "false" if logs == "-" else logs, "RABBITMQ_LOGS")
    for variable in sorted(name for name in environ if name.startswith("RABBITMQ_")):
        row = first_row(FOREIGN_VARIABLES, variable)
        if row is not None and environ[variable]:
            judge(row, f"environment variable {variable}", environ[variable], problems, warnings)
    _judge_plugins(environ, problems, warnings)


def _judge_plugins(environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> None:
    names = {each.strip(): ENABLED_PLUGINS for each in environ.get(ENABLED_PLUGINS, "").split(",")}
    file = environ.get(ENABLED_PLUGINS_FILE)
    text = read_text(Path(file), problems, may_miss=True) if file else None
    if text and text.strip():
        try:
            listed = parsed(text)
        except ValueError as error:
            problems.append(f"cannot read {file}: {error}")
        else:
            names |= {str(each): str(file) for each in (listed if isinstance(listed, list) else [listed])}
    for name, origin in names.items():
        if name and name not in PLUGINS and (row := first_row(FOREIGN_PLUGINS, name)) is not None:
            judge(row, f"{origin}: {name}", "", problems, warnings)
