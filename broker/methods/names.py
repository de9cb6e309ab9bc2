"""Normalisation of names as in RabbitMQ, and checks common to all declarations."""

from leveret.broker.channel.channel import Channel
from leveret.broker.errors import access_refused, not_found, precondition_failed

_STRIP = str.maketrans("", "", "\r\n")


def strip_cr_lf(name: str) -> str:
    """Remove carriage returns and line feeds from a name, as RabbitMQ does."""
    return name.translate(_STRIP)


def queue_name(channel: Channel, name: str) -> str:
    """Return the name of a queue: an empty one stands for the last declared on the channel (404 if there is none)."""
    if name:
        return strip_cr_lf(name)
    if not channel.last_queue:
        raise not_found("no previously declared queue")
    return channel.last_queue


def check_not_default_exchange(name: str) -> None:
    """Raise 403 for the default exchange, which can neither be declared, deleted nor bound."""
    if not name:
        raise access_refused("operation not permitted on the default exchange")


def check_name(kind: str, name: str) -> None:
    """Raise 403 for a new name with the prefix reserved for the broker."""
    if name.startswith("amq."):
        raise access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def check_binding_key(channel: Channel, exchange_type: str, binding_key: str) -> None:
    """Raise 406 for a topic binding key with more `#` words than the configured limit (RabbitMQ 4.3 allows two)."""
    limit = channel.host.compatibility.topic_max_hash
    if limit and exchange_type == "topic":
        hashes = binding_key.split(".").count("#")
        if hashes > limit:
            raise precondition_failed(
                f"Topic binding key '{binding_key}' uses {hashes} '#' wildcards, at most {limit} are allowed"
            )
