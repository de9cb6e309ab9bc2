"""An AMQP 0-9-1 broker in pure Python that behaves like RabbitMQ.

This is the one name that is installed. Its parts are the folders `broker`, `storage`, `exchanges`, `confirm` and
`analytics` at the top of the repository: links in a checkout, folders of this one in the wheel (docs/adr/0023).

The public API is what `__all__` names. A name is loaded when it is first used, so importing this package costs nothing.
"""

import importlib

__version__: str
_PUBLIC = {
    "AsyncBroker": "embedded.async_broker",
    "AsyncQueueView": "embedded.async_vhost",
    "AsyncVHost": "embedded.async_vhost",
    "Broker": "embedded.thread_broker",
    "CallTimeoutError": "embedded.errors",
    "ClosedBrokerError": "embedded.errors",
    "ConfigurationError": "embedded.errors",
    "DataDirectoryError": "embedded.errors",
    "LeveretError": "embedded.errors",
    "MessageView": "administration.messages",
    "NackedError": "embedded.errors",
    "NotIdleError": "embedded.errors",
    "NotRecordedError": "embedded.errors",
    "PortInUseError": "embedded.errors",
    "QueueView": "embedded.vhost",
    "RefusedError": "embedded.errors",
    "UnroutableError": "embedded.errors",
    "VHost": "embedded.vhost",
}
__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - names of strings


def _version() -> str:
    """Return the version, from the data of the installed package."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow, for the many without need

    try:
        return version("leveret")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0+unknown"


def __getattr__(name: str) -> object:
    """Load a name of the public API."""
    if name == "__version__":
        globals()[name] = known = _version()
        return known
    if (module := _PUBLIC.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.broker.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names of the module, with those that are not loaded yet."""
    return sorted({*globals(), *_PUBLIC})
