"""The configuration keys of replication, combined."""

import os
import re
from importlib.util import find_spec
from typing import Any, Final

from leveret.broker.config.key import Key
from leveret.broker.config.sections import ReplicationConfig

REPLICATION: Final[tuple[Key, ...]] = (
    Key(name="replication.url", kind="string", default="", attribute="replication.engine_url", secret=True,
        origin="Leveret",
        doc="PostgreSQL database that keeps the log, the same on all nodes: `postgresql://HOST1,HOST2/NAME?"
        "target_session_attrs=read-write`, with whatever else libpq takes. Needs the extra `leveret[postgresql]`."),
    Key(name="replication.node_name", kind="string", default="", attribute="replication.node_name", origin="Leveret",
        doc="Name of this node, unique among all of them; the host name by default."),
    Key(name="replication.advertised_address", kind="string", default="", attribute="replication.advertised_address",
        origin="Leveret",
        doc="Address that clients and operators reach this node at, which the other nodes show; the host name by "
        "default."),
    Key(name="replication.require_synchronous", kind="choice", default="true", choices=("true", "false", "engine"),
        attribute="replication.require_synchronous", origin="Leveret",
        doc="`true`: lead, and confirm, only while `synchronous_standby_names` of the database is set. `false`: a lost "
        "database loses confirmed messages. `engine`: the storage below the database is replicated, as in managed "
        "services."),
    Key(name="replication.max_batch", kind="size", default="256KiB", low=4096, high=1 << 20,
        attribute="replication.max_batch", origin="Leveret",
        doc="Size up to which commits are grouped into one entry of the log."),
    Key(name="replication.stall_timeout", kind="duration", default="10s", unit="s", low=1,
        attribute="replication.stall_timeout", origin="Leveret",
        doc="Time after which a leader whose disk does not take an entry hands over."),
)  # fmt: skip

PREVIEW: Final = "replication.url: replication is a preview with limits (docs/howto/replicate.md)"
_SCHEME: Final = re.compile(r"postgres(ql)?://")
_LONGEST_NAME: Final = 255


def replication_config(given: dict[str, Any], problems: list[str], warnings: list[str]) -> ReplicationConfig:
    """Return the settings of replication.

    Args:
        given: the values that are set, by attribute.
        problems: gets a sentence for each thing that is missing or makes no sense.
        warnings: gets a sentence for each thing that an operator should know.

    """
    if not given.get("engine_url"):
        if ReplicationConfig(**given) != ReplicationConfig():
            problems.append(
                "replication.url is missing: the other keys of replication have no effect without it"
            )
        return ReplicationConfig()
    host = os.uname().nodename
    found = ReplicationConfig(
        **{
            **given,
            "node_name": given.get("node_name") or host,
            "advertised_address": given.get("advertised_address") or host,
        }
    )
    if not _SCHEME.match(found.engine_url):
        problems.append("replication.url must begin with postgresql://")
    if len(found.node_name) > _LONGEST_NAME or not found.node_name.isprintable():
        problems.append(f"replication.node_name must have at most {_LONGEST_NAME} printable characters")
    if find_spec("psycopg") is None:
        problems.append("replication.url needs the package psycopg: pip install 'leveret[postgresql]'")
    warnings.append(PREVIEW)
    warnings.extend(replication_warnings(found))
    return found


def replication_warnings(config: ReplicationConfig) -> list[str]:
    """Return what is unsafe in the settings of replication, which health shows too."""
    if config.require_synchronous != "false":
        return []
    text = (
        "replication.require_synchronous = false: confirmed messages are lost if the database is lost before a "
        "standby has them"
    )
    return [text]
