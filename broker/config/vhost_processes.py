"""Processes for virtual hosts: what does not work together with them, and the configuration of one of them."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from leveret.broker.config.keys import KEYS
from leveret.broker.config.placement import FOLDER, PlacementConfig
from leveret.broker.config.sections import Config

EXPERIMENTAL: Final = (
    "vhosts.processes: processes for virtual hosts are experimental (docs/howto/vhost-processes.md)"
)
_FALSE: Final = (
    "shovel.enabled", "event_exchange.enabled", "proxy_protocol",
)  # fmt: skip
_UNSET: Final = (
    "replication.url", "listeners.ssl.*", "auth_backends.*", "load_definitions", "export.dir",
    "export.stream_vhost", "log.file", "log.audit.file", "channel_max_per_node", "cluster_queue_limit",
    "cluster_exchange_limit",
)  # fmt: skip
_OF_SEVERAL: Final = {
    "listeners.ssl.*": "tls_listeners",
    "auth_backends.*": "backends.chain",
    "log.file": "log.file",
}
"""Fields that several keys set."""
_FIELDS: Final = {key.name: key.attribute for key in KEYS} | _OF_SEVERAL


def problems_of(config: Config) -> Iterator[str]:
    """Yield a sentence about each setting that would hold for a part of the broker only."""
    wanted = config.placement
    if not wanted.processes:
        if wanted.pins:
            name = next(iter(wanted.pins))
            yield f"vhosts.processes is missing: vhosts.process.{name} has no effect without it"
        return
    usual = Config()
    yield from (f"{key} must be false with vhosts.processes" for key in _FALSE if _value(config, key))
    yield from (
        f"{key} cannot be set with vhosts.processes"
        for key in _UNSET
        if _value(config, key) != _value(usual, key)
    )
    for name, number in wanted.pins.items():
        if number > wanted.processes:
            yield f"vhosts.process.{name} must be at most vhosts.processes ({wanted.processes})"


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
