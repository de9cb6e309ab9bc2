"""Errors of the broker as a library; `leveret` exports them."""


class LeveretError(Exception):
    """Any error of `leveret.Broker` and `leveret.AsyncBroker`."""


class ClosedBrokerError(LeveretError):
    """The broker is not running: it was not started, it was stopped, or its disk has failed."""


class PortInUseError(LeveretError):
    """The port is taken, or the address cannot be used on this machine."""


class ConfigurationError(LeveretError, ValueError):
    """The configuration is invalid.

    Attributes:
        problems: one sentence per problem, which names the key.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class DataDirectoryError(LeveretError):
    """The data directory cannot be used: another broker uses it, or its files cannot be opened or read."""


class CallTimeoutError(LeveretError, TimeoutError):
    """The thread of the broker has not answered in time."""


class RefusedError(LeveretError):
    """The broker has refused an operation, with the text for clients: there is no such queue, or it is in use."""


class UnroutableError(LeveretError):
    """A mandatory message has reached no queue."""


class NackedError(LeveretError):
    """A queue has refused a message, as a full one does with `x-overflow=reject-publish`."""


class NotRecordedError(LeveretError):
    """The messages of an exchange are not recorded."""


class NotIdleError(LeveretError, TimeoutError):
    """The broker was not idle when the time to wait was over."""
