"""The broker: composes exchanges, storage and confirm, speaks AMQP and knows the event loop."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["COMPATIBLE_VERSION", "__version__"]

COMPATIBLE_VERSION = "3.13.7"
"""The RabbitMQ whose behaviour this is; clients branch on `product` and `version` (docs/adr/0002)."""

try:
    __version__ = version("leveret")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
