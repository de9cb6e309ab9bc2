"""Processes for virtual hosts: what does not work together with them, and the configuration of one of them."""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from leveret.broker.channel.settings import Limits
from leveret.broker.config.placement import FOLDER, PlacementConfig
from leveret.broker.config.sections import Config

EXPERIMENTAL: Final = (
    "vhosts.processes: processes for virtual hosts are experimental (docs/howto/vhost-processes.md)"
)

_LIMITS: Final = Limits()

_ON: Final[tuple[tuple[str, Callable[[Config], object]], ...]] = (
    ("management.enabled", lambda config: config.management.enabled),
    ("prometheus.enabled", lambda config: config.prometheus.enabled),
    ("shovel.enabled", lambda config: config.shovel.enabled),
    ("event_exchange.enabled", lambda config: config.events.enabled),
    ("proxy_protocol", lambda config: config.proxy_protocol),
)
_SET: Final[tuple[tuple[str, Callable[[Config], object]], ...]] = (
    ("replication.url", lambda config: config.replication.engine_url),
    ("listeners.ssl.*", lambda config: config.tls_listeners),
    ("auth_backends.*", lambda config: not config.backends.is_internal),
    ("load_definitions", lambda config: config.definitions),
    ("export.dir", lambda config: config.export.dir),
    ("log.file", lambda config: config.log.file),
    ("log.audit.file", lambda config: config.audit.file),
    (
        "channel_max_per_node",
        lambda config: config.limits.channel_max_per_node != _LIMITS.channel_max_per_node,
    ),
    ("cluster_queue_limit", lambda config: config.limits.cluster_queue_limit != _LIMITS.cluster_queue_limit),
    (
        "cluster_exchange_limit",
        lambda config: config.limits.cluster_exchange_limit != _LIMITS.cluster_exchange_limit,
    ),
)


def problems_of(config: Config) -> Iterator[str]:
    """Yield a sentence about each setting that one view over all processes would need, which there is not."""
    wanted = config.placement
    if not wanted.processes:
        if wanted.pins:
            name = next(iter(wanted.pins))
            yield f"vhosts.processes is missing: vhosts.process.{name} has no effect without it"
        return
    yield from (f"{key} must be false with vhosts.processes" for key, is_on in _ON if is_on(config))
    yield from (f"{key} cannot be set with vhosts.processes" for key, is_set in _SET if is_set(config))
    for name, number in wanted.pins.items():
        if number > wanted.processes:
            yield f"vhosts.process.{name} must be at most vhosts.processes ({wanted.processes})"


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
