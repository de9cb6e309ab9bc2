"""The broker: composes exchanges, storage and confirm, speaks AMQP and knows the event loop."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("leveret")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
