"""Processes for virtual hosts: what does not work together with them, and the configuration of one of them."""

import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from leveret.broker.auth.backends.settings import ClientTLS
from leveret.broker.config.backends import tls_problems
from leveret.broker.config.keys import KEYS
from leveret.broker.config.placement import FOLDER, PlacementConfig
from leveret.broker.config.sections import Config
from leveret.broker.config.values import LOG_NAME, LOG_NAME_RULE

_DATABASE: Final = re.compile(r"postgres(ql)?://")
_EXPERIMENTAL: Final = "{} is experimental (docs/howto/vhost-processes.md)"
_FALSE: Final = (
    "shovel.enabled", "event_exchange.enabled", "proxy_protocol",
)  # fmt: skip
_UNSET: Final = (
    "replication.url", "listeners.ssl.*", "auth_backends.*", "load_definitions", "export.dir",
    "export.stream_vhost", "log.file", "log.audit.file", "channel_max_per_node", "cluster_queue_limit",
    "cluster_exchange_limit",
)  # fmt: skip
_UNSET_WITH_BROKERS: Final = ("replication.url", "listeners.ssl.*")
"""The latter unless TLS goes on to the other brokers: passwords would pass there in clear text."""
_UNSET_WITH_DIRECTORY: Final = ("replication.url", "vhosts.broker", "vhosts.processes")
_TLS_OPTIONS: Final = "vhosts.ssl_options"
_OF_SEVERAL: Final = {
    "listeners.ssl.*": "tls_listeners",
    "auth_backends.*": "backends.chain",
    "log.file": "log.file",
    "vhosts.broker": "placement.elsewhere",
}
"""Fields that several keys set."""
_FIELDS: Final = {key.name: key.attribute for key in KEYS} | _OF_SEVERAL


def database_problems(key: str, url: str) -> Iterator[str]:
    """Yield a sentence about each fault of a key that names a database."""
    if not _DATABASE.match(url):
        yield f"{key} must begin with postgresql://"
    if find_spec("psycopg") is None:
        yield f"{key} needs the package psycopg: pip install 'leveret[postgresql]'"


def warnings_of(wanted: PlacementConfig) -> Iterator[str]:
    """Yield a sentence about each of these modes that is used."""
    modes = {
        "vhosts.processes": wanted.processes,
        "vhosts.broker": wanted.elsewhere,
        "vhosts.directory": wanted.directory,
        "vhosts.users_log": wanted.users_log,
    }
    return (_EXPERIMENTAL.format(mode) for mode, is_used in modes.items() if is_used)


def problems_of(config: Config) -> Iterator[str]:
    """Yield a sentence about each setting that would hold for a part of the broker only."""
    wanted = config.placement
    is_encrypted = [each[0].is_tls for each in wanted.elsewhere.values()]
    if is_encrypted:
        unset = _UNSET_WITH_BROKERS[: 1 if all(is_encrypted) else 2]
        yield from _set_ones(config, unset, "vhosts.broker")
    if wanted.directory:
        yield from database_problems("vhosts.directory", wanted.directory)
        yield from _set_ones(config, _UNSET_WITH_DIRECTORY, "vhosts.directory")
    if wanted.users_log:
        yield from _users_log_problems(config)
    if any(is_encrypted) or wanted.directory:
        yield from tls_problems(_TLS_OPTIONS, wanted.tls)
    elif wanted.tls != ClientTLS():
        yield f"{_TLS_OPTIONS}.* has no effect: no address of vhosts.broker begins with amqps://"
    if not wanted.processes:
        if wanted.pins:
            name = next(iter(wanted.pins))
            yield f"vhosts.processes is missing: vhosts.process.{name} has no effect without it"
        return
    yield from (f"{key} must be false with vhosts.processes" for key in _FALSE if _value(config, key))
    yield from _set_ones(config, _UNSET, "vhosts.processes")
    for name, number in wanted.pins.items():
        if number > wanted.processes:
            yield f"vhosts.process.{name} must be at most vhosts.processes ({wanted.processes})"


def _users_log_problems(config: Config) -> Iterator[str]:
    if not LOG_NAME.fullmatch(config.placement.users_log):
        yield f"vhosts.users_log {LOG_NAME_RULE}"
    if not (config.placement.directory or config.replication.log):
        yield "vhosts.users_log has no effect without replication.log or vhosts.directory"


def _set_ones(config: Config, keys: Iterable[str], mode: str) -> Iterator[str]:
    usual = Config()
    return (f"{key} cannot be set with {mode}" for key in keys if _value(config, key) != _value(usual, key))


def _value(config: Config, key: str) -> object:
    found: object = attrgetter(_FIELDS[key])(config)
    return found


def config_of_process(config: Config, number: int) -> Config:
    """Return the configuration of a process: all comes from the front but the data directory, and what queues do."""
    count = config.placement.processes
    absolute = config.memory_absolute
    return replace(
        config,
        placement=PlacementConfig(),
        data_dir=config.data_dir / FOLDER / str(number),
        pid_file=None,
        listeners=(),
        management=replace(config.management, enabled=False),
        prometheus=replace(config.prometheus, port=0, tls=None),
        users=(),
        vhosts=(),
        topic_permissions=(),
        memory_absolute=None if absolute is None else absolute // count,
        memory_relative=config.memory_relative / count,
        limits=replace(
            config.limits,
            connection_max=None,
            default_limits=(),
            user_limits={},
            vhost_limits={},
            vhost_max=None,
        ),
        warnings=(),
    )
