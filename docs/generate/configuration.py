"""The page of the configuration keys, and the example file, from the declarations of the keys."""
# ruff: noqa: E501 - texts of a page, in lines as docs have them

from collections.abc import Iterable, Iterator

from leveret.broker.config.keys import TOPICS
from leveret.broker.config.rabbitmq import (
    ARGUMENTS,
    FOREIGN,
    FOREIGN_VARIABLES,
    RABBITMQ_VARIABLES,
    Foreign,
)
from leveret.broker.config.reference import value_text

_HEAD = """\
# Configuration

All configuration keys of the broker, by topic. The keys and the file syntax are those of `rabbitmq.conf`; keys
that only Leveret has are marked *.

This page is generated (`make docs`) from the fields in `broker/config/sections.py`; edit that file, not this page.

{contents}

## Where settings come from

If a key is set in several places, the first of these applies:

1. command line options: `leveret serve --set KEY=VALUE` (may be repeated), `--data-dir DIR`, `--pid-file FILE`,
   `--log-file FILE`;
2. environment variables: `LEVERET_` and the key in capitals with underscores for dots (`LEVERET_CONFIRM_MODE`
   sets `confirm.mode`), and [RabbitMQ's variables](#environment-variables);
3. configuration files: `--config FILE` (may be repeated; later files override earlier ones). A directory means
   its `*.conf` files, a pattern (`'/etc/rabbitmq/conf.d/*.conf'`; also `?`, `[0-9]`, `{{this,that}}`) the files
   it matches, in lexical order;
4. the default.

`leveret config` lists the keys with their values without starting the broker, those that are set first, with their
origin. With `--config FILE` it lists those alone, and `--all` adds the others. `leveret config KEY` explains one key,
and `leveret config --ignored` lists the keys of RabbitMQ without effect.
All problems are reported at once. An unknown key is an error (exit code 78) that names the closest known key.
RabbitMQ's keys that are not supported are an error if they protect something, otherwise a warning
([list](#unsupported-keys-of-rabbitmq)).

## Example file

[leveret.conf](leveret.conf), a configuration for a broker that serves other hosts:

```ini
{example}```

## Syntax and values

A file has one `key = value` per line. `#` starts a comment, a value in single quotes is taken literally, and
`$(NAME)` is replaced by the environment variable NAME. `$name` in a key below stands for a name of your choice.

| Value | Examples | Notes |
|---|---|---|
| duration | `200ms`, `5s`, `1m`, `1h`, `1d` | a bare number is in the unit that the key states |
| size | `65536`, `64KiB`, `64kB`, `128Mi`, `1GiB` | bytes; all units are powers of 1024 |
| amount | `50MB`, `2GiB` | bytes; `kB`, `MB`, `G` and so on are powers of 1000; `Ki`, `KiB` and so on of 1024 |
| address | `5672`, `127.0.0.1:5672`, `[::1]:5672` | a port alone means all interfaces |

Sizes and amounts have RabbitMQ's units for the same keys.
"""

EXAMPLE = """\
# Accept connections from other hosts; the default is 127.0.0.1:5672.
listeners.tcp.default = 5672

# The first user, created when the data directory is empty. Without these lines
# it is guest with the password guest, who may connect from this host only.
default_user = admin
default_pass = choose-a-long-password

# Let Prometheus connect from other hosts; the default is 127.0.0.1.
prometheus.tcp.ip = 0.0.0.0
prometheus.tcp.port = 15692

# Block publishers above 40 % of the memory, or below 2 GB of free disk space.
vm_memory_high_watermark.relative = 0.4
disk_free_limit.absolute = 2GB

# Publisher confirms: when the broker has the message, and a limit for waiting.
confirm.mode = standard
confirm.timeout = 30s

# Log to the console (the journal, under systemd) and to a rotated file.
log.console = true
log.console.level = info
log.file = leveret.log
log.file.rotation.size = 64MiB
log.file.rotation.count = 10
"""


_INTRODUCTIONS = {  # by the titles of topics
    "Listeners and sockets": "Where clients connect, and options of their TCP connections.",
    "TLS": "AMQP over TLS 1.2 and 1.3 ([how to](howto/tls.md)). Files are PEM; they are loaded again when they have changed, on SIGHUP, and by `leveret ctl reload_tls`.",
    "Connections and channels": "The handshake, what the server proposes in `connection.tune`, and acknowledgement timeouts.",
    "Limits": "How much clients may use. `infinity` means no limit.",
    "Users, virtual hosts and definitions": "The first user and virtual host are created when the data directory is empty, unless definitions are loaded.",
    "Authentication backends": "Who lets users in and decides about their permissions, beside the internal database ([authentication backends](howto/authentication-backends.md)).",
    "Shovels and policies of users": "What the broker does for users who are no administrators ([shovels](howto/shovels.md)).",
    "Publisher confirms": "When a publish is confirmed ([confirm modes](howto/choose-a-confirm-mode.md)).",
    "Memory and disk alarms": "While an alarm is in effect, publishers are blocked (`connection.blocked`).",
    "Message storage": "Commits, paging and the data files ([storage](storage.md)).",
    "Replication": "Several nodes with one log in PostgreSQL, of which one leads and the others wait (preview: [how to](howto/replicate.md)).",
    "Message interceptors": "As those of RabbitMQ for incoming messages.",
    "Compatibility": "Switches between the behaviour of RabbitMQ 3 and 4 ([compatibility](compatibility.md)).",
    "Metrics and health checks": "The HTTP endpoints for Prometheus and for probes ([metrics](metrics.md)).",
    "TLS of the metrics listener": "A second listener, or the only one if no `prometheus.tcp` key is set.",
    "Management": "The HTTP API for administrators ([management](management.md)).",
    "TLS of the management API": "A second listener, or the only one if no `management.tcp` key is set. RabbitMQ's older names of one listener (`management.listener.port`, `.ip`, `.ssl`, `.ssl_opts.*`) set `management.tcp`, or `management.ssl` if `management.listener.ssl` is true.",
    "Export for analysis": "JSON Lines files of what happens in the broker ([exported tables](export.md)).",
    "Logging": "The console, and one file.",
    "Events": "Messages about queues, connections, users and others, as they change.",
    "Audit log": "JSON Lines about logins and changes: who, from where, what ([limits and audit](howto/limits-and-audit.md)).",
}


def render() -> str:
    """Return the whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    contents = " · ".join(f"[{topic.title}](#{_anchor(topic.title)})" for topic in TOPICS)
    yield _HEAD.format(contents=contents, example=EXAMPLE)
    for topic in TOPICS:
        yield f"## {topic.title}"
        yield ""
        if topic.title in _INTRODUCTIONS:
            yield _INTRODUCTIONS[topic.title]
            yield ""
        yield "| Key | Value | Default | Description |"
        yield "|---|---|---|---|"
        for key in topic.keys:
            mark = " *" if key.own else ""
            default = f"`{key.default}`" if key.default else ""
            yield f"| {_linked(key.name)}{mark} | {value_text(key)} | {default} | {key.doc} |"
        yield ""
    yield "## Environment variables"
    yield ""
    yield "Besides `LEVERET_*` these variables are read; all but the first are RabbitMQ's."
    yield ""
    yield "| Variable | Sets |"
    yield "|---|---|"
    yield "| `LEVERET_CONFIG_FILE` | a configuration file, read if there is no `--config` |"
    yield "| `RABBITMQ_CONFIG_FILE` | a configuration file, read if there is neither; its extension may be omitted |"
    yield "| `RABBITMQ_CONFIG_FILES` | a directory or a pattern, read after that file |"
    yield "| `RABBITMQ_NODE_PORT`, `RABBITMQ_NODE_IP_ADDRESS` | `listeners.tcp.default` |"
    for variable, name in RABBITMQ_VARIABLES.items():
        yield f"| `{variable}` | `{name}` |"
    yield "| `RABBITMQ_LOGS` | `-`: `log.console = true`; otherwise `log.file` |"
    yield "| `RABBITMQ_ADVANCED_CONFIG_FILE` | advanced.config, in the form of Erlang, read after the files above |"
    arguments = ", ".join(f"`{each}`" for each in ARGUMENTS)
    yield f"| {arguments} | the keys of `-rabbit KEY VALUE`, `-rabbitmq_management KEY VALUE` and so on |"
    yield "| `RABBITMQ_CONF_ENV_FILE` | rabbitmq-env.conf: variables as above; the environment wins |"
    plugins = "`RABBITMQ_ENABLED_PLUGINS_FILE`, `RABBITMQ_ENABLED_PLUGINS`"
    yield f"| {plugins} | nothing: a plugin that is not here is a warning, or an error if it protects something |"
    yield ""
    yield "A setting in the form of Erlang, `{rabbit, [{heartbeat, 30}]}`, is read as its key of `rabbitmq.conf`, and"
    yield "judged as that key is. A `--config` file whose name ends with `.config` is read in that form."
    yield "These variables have no effect; those of the Erlang runtime and of clustering are harmless, and not listed."
    yield ""
    yield from _foreign(FOREIGN_VARIABLES, "Variables")
    yield ""
    yield "## Unsupported keys of RabbitMQ"
    yield ""
    yield "These keys have no effect. Setting one that protects something (encryption, authentication, limits) stops"
    yield "the start with exit code 78; any other is a warning, so that an existing `rabbitmq.conf` loads. `*` stands"
    yield "for any text. The values in the third column request nothing, and are accepted silently."
    yield ""
    yield from _foreign(FOREIGN, "Keys")


def _foreign(rows: Iterable[Foreign], title: str) -> Iterator[str]:
    """Yield a table of names that have no effect."""
    yield f"| {title} | If set | Accepted values | Reason |"
    yield "|---|---|---|---|"
    for row in rows:
        keys, nothing = (", ".join(f"`{each}`" for each in names) for names in (row.keys, row.nothing))
        yield f"| {keys} | {'error' if row.refused else 'warning'} | {nothing} | {row.why} |"


def _anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST generate it."""
    return title.lower().replace(",", "").replace(" ", "-")


def _linked(name: str) -> str:
    return f'<a id="{name}" href="#{name}"><code>{name}</code></a>'
