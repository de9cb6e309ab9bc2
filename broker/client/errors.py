"""Exceptions of a client's connection; their texts are one line for its user, and contain no password."""


class ClientError(Exception):
    """A connection cannot be opened or has ended, or a method has failed."""


class UnreachableError(ClientError):
    """The broker cannot be reached, does not speak AMQP 0-9-1, closed the connection or did not reply in time."""


class RefusedError(ClientError):
    """The broker refused the login, the vhost or an operation for lack of permission."""


class ReplyError(ClientError):
    """The broker closed a channel or the connection with an AMQP reply code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the broker replied {code} {text}")
        self.code = code
