"""RabbitMQ's settings in the form of Erlang: advanced.config, classic rabbitmq.config, arguments of Erlang.

`[{rabbit, [{consumer_timeout, 3600000}]}].` and `-rabbit consumer_timeout 3600000` mean `consumer_timeout = 3600000` of
rabbitmq.conf: so each setting of an application becomes those of the keys that mean the same, and these are judged as
all others are. Lists of pairs become names with dots, other lists numbered names; `_settings_of` has what has another
form in rabbitmq.conf. Settings of the runtime have no effect here, and are harmless. One that no key stands for is a
warning, or an error if its name says that it protects something.

Sources: the schemas of RabbitMQ 3.13 and 4.3 (`rabbit.schema`, `rabbitmq_management.schema`, ...), which translate keys
to these settings.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from leveret.broker.config.values import Listener, Setting, read_text
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
