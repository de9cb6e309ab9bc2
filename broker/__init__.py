"""The broker: composes exchanges, storage and confirm, speaks AMQP and knows the event loop."""

__all__ = ["COMPATIBLE_VERSION", "COMPATIBLE_VERSIONS"]

COMPATIBLE_VERSIONS = {"3.13": "3.13.7", "4.3": "4.3.6"}
"""The RabbitMQ that each `compatibility.profile` follows; clients branch on `product` and `version` (docs/adr/0002)."""
COMPATIBLE_VERSION = COMPATIBLE_VERSIONS["3.13"]  # the one imitated unless the configuration says otherwise
