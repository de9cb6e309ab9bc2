"""Errors of commands: a text, and RabbitMQ's exit code for it."""

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.escaping import printable_lines


class CtlError(Exception):
    """A command failed.

    Args:
        text: for the administrator; what would act on a terminal is escaped, since names are chosen by clients.
        code: exit code.

    """

    def __init__(self, text: str, code: int = exit_codes.UNAVAILABLE) -> None:
        super().__init__(printable_lines(text))
        self.code = code


class UsageError(CtlError):
    """The arguments of a command are invalid; its usage is shown, too.

    Args:
        text: for the administrator, in RabbitMQ's words.
        code: exit code.
        hint: what is wrong in detail.

    """

    def __init__(self, text: str, code: int, hint: str = "") -> None:
        super().__init__(text, code)
        self.hint = hint


def refused(text: str) -> CtlError:
    """Return the error for an operation that the broker refused, or a check that failed."""
    return CtlError(f"Error:\n{text}", exit_codes.UNAVAILABLE)


def no_user(name: str, code: int = exit_codes.NO_USER) -> CtlError:
    """Return the error for a user that does not exist."""
    return CtlError(f'Error:\nUser "{name}" does not exist', code)


def no_vhost(name: str) -> CtlError:
    """Return the error for a virtual host that does not exist."""
    return CtlError(f"Virtual host '{name}' does not exist", exit_codes.DATA)
