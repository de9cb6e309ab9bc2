"""The method classes of AMQP 0-9-1 and RabbitMQ's extensions, for all modules outside `broker.amqp`.

They are pamqp's, plus the access class, which pamqp lacks. Their table attributes hold typed tables
(`broker.amqp.tables`), never plain mappings.
"""

from typing import ClassVar, TypeVar

from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

__all__ = ("Access", "Basic", "Channel", "Confirm", "Connection", "Exchange", "Frame", "Queue", "Tx", "make")

_Method = TypeVar("_Method", bound=Frame)


class Access:
    """The access class of AMQP 0-8, which old clients still use; RabbitMQ replies with ticket 1."""

    class Request(Frame):
        """Request access to a realm (class 30, method 10)."""

        __slots__: ClassVar[list[str]] = ["realm", "exclusive", "passive", "active", "write", "read"]  # noqa: RUF023 - wire order
        frame_id: ClassVar[int] = 10
        index: ClassVar[int] = 0x001E000A
        name: ClassVar[str] = "Access.Request"
        synchronous: ClassVar[bool] = True
        valid_responses: ClassVar[list[str]] = ["Access.RequestOk"]

        _realm = "shortstr"
        _exclusive = "bit"
        _passive = "bit"
        _active = "bit"
        _write = "bit"
        _read = "bit"

        def __init__(
            self,
            realm: str = "",
            exclusive: bool = False,
            passive: bool = True,
            active: bool = True,
            write: bool = True,
            read: bool = True,
        ) -> None:
            self.realm = realm
            self.exclusive = exclusive
            self.passive = passive
            self.active = active
            self.write = write
            self.read = read

    class RequestOk(Frame):
        """Grant access (class 30, method 11)."""

        __slots__: ClassVar[list[str]] = ["ticket"]
        frame_id: ClassVar[int] = 11
        index: ClassVar[int] = 0x001E000B
        name: ClassVar[str] = "Access.RequestOk"
        synchronous: ClassVar[bool] = False

        _ticket = "short"

        def __init__(self, ticket: int = 1) -> None:
            self.ticket = ticket


def make(method: type[_Method], *values: object) -> _Method:
    """Create a method without pamqp's checks, which refuse names that RabbitMQ accepts (such as `a$b`).

    `values` are all its fields, in wire order; raises ValueError if there are too many or too few.
    """
    made = method.__new__(method)
    for name, value in zip(method.__slots__, values, strict=True):
        setattr(made, name, value)
    return made
