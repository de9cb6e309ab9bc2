from leveret.broker.administration.messages import MessageView as MessageView
from leveret.broker.embedded.errors import (
    CallTimeoutError as CallTimeoutError,
    ClosedBrokerError as ClosedBrokerError,
    ConfigurationError as ConfigurationError,
    DataDirectoryError as DataDirectoryError,
    LeveretError as LeveretError,
    NackedError as NackedError,
    NotIdleError as NotIdleError,
    NotRecordedError as NotRecordedError,
    PortInUseError as PortInUseError,
    RefusedError as RefusedError,
    UnroutableError as UnroutableError,
)
from leveret.broker.embedded.synchronous import Broker as Broker, QueueView as QueueView, VHost as VHost
from leveret.broker.embedded.vhost import (
    AsyncBroker as AsyncBroker,
    AsyncQueueView as AsyncQueueView,
    AsyncVHost as AsyncVHost,
)

__version__: str
__all__ = [
    "AsyncBroker",
    "AsyncQueueView",
    "AsyncVHost",
    "Broker",
    "CallTimeoutError",
    "ClosedBrokerError",
    "ConfigurationError",
    "DataDirectoryError",
    "LeveretError",
    "MessageView",
    "NackedError",
    "NotIdleError",
    "NotRecordedError",
    "PortInUseError",
    "QueueView",
    "RefusedError",
    "UnroutableError",
    "VHost",
    "__version__",
]
