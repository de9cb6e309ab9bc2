"""Values that are compared by their types, or not at all, because no two brokers can have them alike."""

import re
from typing import Any

MEASURED = (
    r".*(version|_hash)",  # of the programs; salted anew by each
    r".*\.(product_name|cluster_name|user_who_performed_action|db_dir|os_pid|processors|run_queue|uptime|rates_mode)",
    r".*\.(started|timestamp|idle_since|connected_at)",
    r"\.message_stats\..*",  # sampled at times of their own; the aliveness test publishes and gets otherwise
    r".*\.listeners\[\]\.ip_address",
    r".*\.(log_files|config_files)\[\]",
    r".*_details\..*",  # rates and samples depend on when they were taken
    r"(\[\])?\.ra_open_file_metrics\..*",
    r".*\.garbage_collection\..*",
    r"\.(memory|ets_tables_memory)\..*",
    r"(\[\])?\.(mem|fd|sockets|proc|disk|gc|io|mnesia|msg_store|queue_index|context)_.*",
    r"\[\]\.auth_attempts.*",
    r"(\[\])?\.(churn_rates\.|)(connection|channel|queue)_(created|closed|declared|deleted)",
    r".*\.(desc|doc_url|description)",  # the words are our own
)
"""Paths of values of which only the type is compared."""

OF_PARTS = (r".*\.(applications|exchange_types|auth_mechanisms|listeners|contexts|log_files|config_files)",)
"""Paths of lists of what a broker is made of: of those, the items that both have are compared."""

ONLY_THEIRS = (
    r".*\.socket_opts",  # of Erlang's sockets
    r"\.ets_tables_memory\.(?!total).*",  # Erlang's tables
)
"""Paths of keys that only RabbitMQ can have."""


def is_measured(path: str, theirs: Any, ours: Any) -> bool:
    """Return whether only the type of a value is compared; a hash of a password is another type than none."""
    if path.endswith("_hash") and "" in {theirs, ours}:
        return False
    return any(re.fullmatch(pattern, path) for pattern in MEASURED)


def is_of_parts(path: str, items: list[Any]) -> bool:
    """Return whether a list tells what a broker is made of, or who has logged in to which part."""
    return any(re.fullmatch(pattern, path) for pattern in OF_PARTS) or all(
        isinstance(item, dict) and "auth_attempts" in item for item in items
    )


def is_only_theirs(path: str) -> bool:
    """Return whether only RabbitMQ can have a key."""
    return any(re.fullmatch(pattern, path) for pattern in ONLY_THEIRS)


def common(theirs: list[Any], ours: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the items that both lists have, by name or protocol; of lists of texts as many as both have."""
    if not all(isinstance(item, dict) for item in theirs + ours):
        least = min(len(theirs), len(ours))
        return theirs[:least], ours[:least]
    key = "protocol" if any("protocol" in item for item in theirs) else "name"
    both = {item.get(key) for item in theirs} & {item.get(key) for item in ours}
    return tuple([item for item in items if item.get(key) in both] for items in (theirs, ours))  # type: ignore[return-value]


def error_body(body: Any) -> Any:
    """Return the body of an error without what no two brokers can have alike.

    Texts that Erlang wrote as lists of numbers are texts, and words of the engine of regular expressions are `ENGINE`.
    """
    if isinstance(body, dict):
        return {key: _of_parts(key, error_body(value)) for key, value in body.items()}
    if isinstance(body, str):
        return re.sub(r"(pattern should be regular expression but is invalid: ).*", r"\1ENGINE", body)
    if not isinstance(body, list):
        return body
    if body[:1] == ["invalid_regexp"]:
        return [*error_body(body[1:2]), "ENGINE"]
    if body and all(isinstance(item, int) and 32 <= item <= 255 for item in body):
        return "".join(map(chr, body))
    return [error_body(item) for item in body]


def _of_parts(key: str, value: Any) -> Any:
    """Return listeners, by name or port, without those of Erlang's clustering; others unchanged."""
    if key in {"ports", "protocols"} and isinstance(value, list):
        return sorted(set(value) & {"amqp", "http", 5672, 15672})
    return value
