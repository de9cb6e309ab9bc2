"""Commands of RabbitMQ that are not there, and what to use instead."""

import re
from collections.abc import Iterator, Sequence

ABSENT = {
    "clusters and replicas, which RabbitMQ makes of its nodes": """
        add_member cancel_sync_queue change_cluster_node_type delete_member discover_peers force_boot
        grow join_cluster peek quorum_status reclaim_quorum_memory rename_cluster_node shrink
        stream_status sync_queue update_cluster_nodes
    """,
    "Erlang": """
        certificates cipher_suites command_line_arguments consume_event_stream erlang_cookie_hash erlang_cookie_sources
        eval eval_file exec hipe_compile list_ciphers list_hashes list_network_interfaces maybe_stuck observer os_env
        remote_shell resolver_info runtime_thread_stats schema_info tls_versions
    """,
    "encrypted configuration values: `leveret config encrypt` makes them": "decode encode",
    "a broker that is stopped or forgets its data while its process runs": "force_reset reset stop_app",
    "maintenance: the image has `rabbitmq-upgrade drain`, `revive`, `post_upgrade`, which do nothing": """
        drain post_upgrade resume_listeners revive suspend_listeners
    """,
    "counts of logins, which the management API has (`/api/auth/attempts`)": """
        disable_auth_attempt_source_tracking enable_auth_attempt_source_tracking list_node_auth_attempt_stats
        reset_node_auth_attempt_metrics
    """,
    "shells and streams of the log": "autocomplete log_tail_stream",
}
"""Commands of RabbitMQ 3.10 that are not there, by what they are about."""

_CLEARED = "the {} alarm is cleared by the limit that there was before: `leveret ctl set_{}`"
_SETTINGS = (
    "settings are read at the start, from the file or `leveret serve --set KEY=VALUE`; "
    "`leveret config` lists them"
)
_EXPRESSIONS = (
    (r"rabbit_alarm:set_alarm\b.*\bdisk\b", "`leveret ctl set_disk_free_limit 1000TB` raises the disk alarm"),
    (r"rabbit_alarm:clear_alarm\b.*\bdisk\b", _CLEARED.format("disk", "disk_free_limit 50MB")),
    (
        r"rabbit_alarm:set_alarm\b",
        "`leveret ctl set_vm_memory_high_watermark absolute 1` raises the memory alarm",
    ),
    (
        r"rabbit_alarm:clear_alarm\b|vm_memory_monitor:",
        _CLEARED.format("memory", "vm_memory_high_watermark 0.4"),
    ),
    (r"application:(set|unset)_env\b", _SETTINGS),
    (r"application:get_(all_)?env\b", "`leveret ctl environment` shows the settings in effect"),
)
"""Patterns of Erlang expressions that scripts let `eval` evaluate, and what to use instead; the first one counts."""
_FORGET = "to forget everything, stop the broker and remove its data directory"
INSTEAD = {
    "stop_app": "`leveret ctl close_all_connections REASON --global` ends connections, and their exclusive queues; "
    "to stop the broker, end its process (SIGTERM)",
    "reset": _FORGET,
    "force_reset": _FORGET,
    "eval": "`leveret ctl alarms` shows alarms that a script has left: limits set by `set_vm_memory_high_watermark` "
    "and `set_disk_free_limit` stay until they are set again, or the broker starts",
}
"""Advice by command: what to use instead, and what a script that stops there has left."""


def explained(words: Sequence[str]) -> Iterator[str]:
    """Yield lines that say why there is no such command, and what to use instead; none for other names."""
    name, rest = words[0], " ".join(words[1:])
    for subject, names in ABSENT.items():
        if name in names.split():
            yield f"It is one of RabbitMQ's commands that do not exist here, about {subject}. Nothing was changed."
            if name == "eval":
                yield from [text for pattern, text in _EXPRESSIONS if re.search(pattern, rest, re.DOTALL)][:1]
            if name in INSTEAD:
                yield INSTEAD[name]
