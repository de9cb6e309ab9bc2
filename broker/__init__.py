"""The broker: composes exchanges, storage and confirm, speaks AMQP and knows the event loop."""

__all__ = ["COMPATIBLE_VERSION"]

COMPATIBLE_VERSION = "3.13.7"
"""The RabbitMQ whose behaviour this is; clients branch on `product` and `version` (docs/adr/0002)."""
