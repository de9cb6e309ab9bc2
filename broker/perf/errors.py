"""Exceptions of the load tool; their texts are one line for whoever runs it."""


class PerfError(Exception):
    """A run that cannot start or has to end early."""


class UnreachableError(PerfError):
    """The broker cannot be reached, does not speak AMQP 0-9-1, closed the connection or did not reply in time."""


class RefusedError(PerfError):
    """The broker refused the login, the vhost or an operation for lack of permission."""


class ReplyError(PerfError):
    """The broker closed a channel or the connection with an AMQP reply code.

    Args:
        code: reply code, such as 404.
        text: reply text, such as `NOT_FOUND - no queue 'a' in vhost '/'`.

    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the broker replied {code} {text}")
        self.code = code
