"""RabbitMQ's keys, environment variables and plugins that have no effect here: whether one is a warning or an error.

An existing rabbitmq.conf should load if that loses nothing, and should not if it does: a key that protects something
(it encrypts, authenticates, or limits access) and has no effect here is an error, because the administrator relies on
it. Any other key causes a warning. A value that requests only what happens anyway is accepted silently in either case.
docs/configuration.md has the table (`make docs`).
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

import msgspec


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
