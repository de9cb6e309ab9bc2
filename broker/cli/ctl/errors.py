"""Errors of commands: a text, and RabbitMQ's exit code for it."""

from http.client import TOO_MANY_REQUESTS

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.output import printable_lines

DISK_FULL = "disk_full"  # broker's word for a change that is not on disk, and would be lost with the broker


class CtlError(Exception):
    """A command failed: its exit code, and a text for the administrator.

    What would act on a terminal is escaped, since names are chosen by clients.
    """

    def __init__(self, text: str, code: int = exit_codes.UNAVAILABLE) -> None:
        super().__init__(printable_lines(text))
        self.code = code
        self.shown = str(self)  # text that the command prints


class UsageError(CtlError):
    """The arguments of a command are invalid: RabbitMQ's words, and a hint in detail; its usage is shown, too."""

    def __init__(self, text: str, code: int, hint: str = "") -> None:
        super().__init__(text, code)
        self.hint = hint


class ApiError(CtlError):
    """The broker answered with an error: HTTP status, its text, escaped for HTML, and its word, such as `disk_full`."""

    def __init__(self, status: int, reason: str, kind: str = "") -> None:
        code = exit_codes.CANNOT_CREATE if kind == DISK_FULL else exit_codes.UNAVAILABLE
        super().__init__(reason, exit_codes.TEMPORARY if status == TOO_MANY_REQUESTS else code)
        self.status = status
        self.kind = kind
        self.reason = str(self)
        text = self.reason.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        self.shown = f"Error:\n{printable_lines(text)}"


def refused(text: str) -> CtlError:
    """Return the error for an operation that the broker refused, or a check that failed."""
    return CtlError(f"Error:\n{text}")
