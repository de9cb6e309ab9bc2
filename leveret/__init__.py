"""An AMQP 0-9-1 broker in pure Python that behaves like RabbitMQ.

This is the one name that is installed. Its parts are the folders `broker`, `storage`, `exchanges`, `confirm` and
`analytics` at the top of the repository: links in a checkout, folders of this one in the wheel (docs/adr/0023).

The public API is what `__all__` names. A name is loaded when it is first used, so importing this package costs nothing.
"""

import importlib

__version__ = "0.2.0"
_MODULES = {
    "administration.messages": ("MessageView",),
    "embedded.errors": (
        "CallTimeoutError", "ClosedBrokerError", "ConfigurationError", "DataDirectoryError", "LeveretError",
        "NackedError", "NotIdleError", "NotRecordedError", "PortInUseError", "RefusedError", "UnroutableError",
    ),
    "embedded.synchronous": ("Broker", "QueueView", "VHost"),
    "embedded.vhost": ("AsyncBroker", "AsyncQueueView", "AsyncVHost"),
}  # fmt: skip
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - names of strings


def __getattr__(name: str) -> object:
    """Load a name of the public API."""
    if (module := _PUBLIC.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.broker.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names of the module, with those that are not loaded yet."""
    return sorted({*globals(), *_PUBLIC})
