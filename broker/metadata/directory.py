"""The directory of a broker: its users, virtual hosts and global parameters, each recorded as it changes."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import Users
from leveret.broker.channel.settings import DefaultLimits
from leveret.broker.metadata.recorder import Definitions, GlobalParameters
from leveret.broker.metadata.restore import restore
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.loop import Loop
from leveret.broker.vhost.vhost import Metadata, VHost

CLUSTER_NAME = "cluster_name"  # the global parameter that is the name of the cluster
CLUSTER_ID = "internal_cluster_id"  # global parameter, made at the first start, as by RabbitMQ

_NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})


class Directory:
    """Users, virtual hosts and global parameters."""

    def __init__(
        self,
        loop: Loop,
        definitions: Definitions,  # records the changes
        users: Users,
        patterns: Patterns,  # compiles patterns of names
        default_limits: Iterable[DefaultLimits],  # the limits of new vhosts
        make_vhost: Callable[[str], VHost],  # makes a vhost that is not recorded
        default_queue_type: str = "",  # that of vhosts for which none is given
        cluster_tags: Mapping[str, str] = _NO_TAGS,
    ) -> None:
        self.definitions, self.users, self.patterns = definitions, users, patterns
        self.vhosts: dict[str, VHost] = {}  # the vhosts by name
        self.global_parameters = GlobalParameters(definitions)
        self.on_add: Callable[[VHost], object] | None = None  # called with each vhost that is added
        self.skipped = 0  # number of definitions, and parts of them, that imports have left out
        self._loop = loop
        self.default_queue_type = default_queue_type
        self._cluster_tags = cluster_tags
        self._default_limits = tuple(default_limits)
        self._make_vhost = make_vhost

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what an earlier run has stored; returns its durable queues, empty. Raises as `restore.restore`."""
        queues = restore(rows, self.definitions, self.users, self.global_parameters, self._new_vhost)
        events = self._loop.context.events
        if events is not None:
            events.forget()
        return queues

    def _new_vhost(self, name: str) -> VHost:
        vhost = self.vhosts[name] = self._make_vhost(name)
        return vhost

    def add_vhost(self, name: str, metadata: Metadata | None = None) -> VHost:
        """Add a vhost that does not exist yet."""
        vhost = self._new_vhost(name)
        vhost.metadata = metadata or Metadata(default_queue_type=self.default_queue_type)
        self.definitions.add_vhost(vhost)
        for default in self._default_limits:
            if self.patterns.compile(default.pattern)(name.encode("utf-8", "surrogateescape")):
                self.users.set_vhost_limits(name, default.limits)
                break
        if self.on_add is not None:
            self.on_add(vhost)
        return vhost

    def remove_vhost(self, vhost: VHost) -> None:
        """Delete a vhost with everything in it and all permissions in it; its connections must be closed before.

        It is no longer found from now on, and a restart does not restore it once this is committed; its queues and
        exchanges are deleted by a job.
        """
        del self.vhosts[vhost.name]
        self.definitions.remove_vhost(vhost)
        self.users.remove_vhost(vhost.name)
        context = self._loop.context
        steps = context.acting(context.actor, vhost.remove_all())
        self._loop.turn.add_writing_job(steps, f"deletion of vhost '{vhost.name}'")

    @property
    def cluster_name(self) -> str | None:
        """The name of the cluster that an administrator has set; None for none."""
        name = self.global_parameters.get(CLUSTER_NAME)
        return name if isinstance(name, str) else None

    def rename_cluster(self, name: str) -> None:
        """Set the name that clients see, as a global parameter as in RabbitMQ."""
        self.global_parameters.set(CLUSTER_NAME, name)

    @property
    def cluster_tags(self) -> dict[str, Any]:
        """The tags of the cluster: those of the configuration, or of the global parameter of that name."""
        given = self.global_parameters.get("cluster_tags")
        return dict(given) if isinstance(given, Mapping) else dict(self._cluster_tags)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; '' before the first start, or if an administrator has removed it."""
        name = self.global_parameters.get(CLUSTER_ID)
        return name if isinstance(name, str) else ""
