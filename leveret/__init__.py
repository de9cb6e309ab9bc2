"""An AMQP 0-9-1 broker in pure Python that behaves like RabbitMQ.

This is the one name that is installed. Its parts are the folders `broker`, `storage`, `exchanges`, `confirm` and
`analytics` at the top of the repository: links in a checkout, folders of this one in the wheel (docs/adr/0023).
"""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("leveret")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
