from leveret.broker.embedded.async_broker import AsyncBroker as AsyncBroker
from leveret.broker.embedded.errors import (
    CallTimeoutError as CallTimeoutError,
    ClosedBrokerError as ClosedBrokerError,
    ConfigurationError as ConfigurationError,
    DataDirectoryError as DataDirectoryError,
    LeveretError as LeveretError,
    PortInUseError as PortInUseError,
)
from leveret.broker.embedded.thread_broker import Broker as Broker

__version__: str
__all__ = [
    "AsyncBroker",
    "Broker",
    "CallTimeoutError",
    "ClosedBrokerError",
    "ConfigurationError",
    "DataDirectoryError",
    "LeveretError",
    "PortInUseError",
    "__version__",
]
