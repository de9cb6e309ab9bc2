"""Errors of operations that are carried out as by a client of the user, spelt as in RabbitMQ."""

from collections.abc import Iterator
from contextlib import contextmanager

from leveret.broker.administration import AdministrationError, ForbiddenError, NotFoundError
from leveret.broker.http.call import Call
from leveret.broker.http.errors import ApiError, bad_request, not_authorised, not_found, vhost_not_found

REFUSED = "Access refused."


@contextmanager
def changing(call: Call) -> Iterator[None]:
    """Declare, bind or delete in the vhost of the path.

    Raises ApiError: the vhost or an object does not exist (404), the user lacks a permission (401).
    """
    if call.vhost not in call.broker.vhosts:
        raise vhost_not_found()
    try:
        with naming_the_missing():
            yield
    except ForbiddenError:
        raise not_authorised(REFUSED) from None


@contextmanager
def on_channel(call: Call, *, queue: bool = False) -> Iterator[None]:
    """Publish or fetch in the vhost of the path; errors are those that close a channel.

    Args:
        call: the call.
        queue: True if the operation is one on a queue, whose absence has a status of its own.

    Raises:
        ApiError: 401 if the user may not connect to the vhost, 404 for a missing queue, otherwise 400.

    """
    if call.vhost not in call.broker.vhosts:
        raise not_authorised(REFUSED)
    try:
        yield
    except AdministrationError as error:
        text = error.reply_text
        if not text:
            raise not_authorised(REFUSED) if isinstance(error, ForbiddenError) else error from None
        if queue and isinstance(error, NotFoundError):
            raise ApiError(404, "not_found", text.partition(" ")[2]) from None
        raise bad_request(text) from None


@contextmanager
def naming_the_missing() -> Iterator[None]:
    """Answer 404 with the name of what does not exist, where RabbitMQ has no text that has to be the same."""
    try:
        yield
    except NotFoundError as error:
        raise ApiError(404, "not_found", str(error)) from None


def found_vhost(call: Call) -> str:
    """Return the vhost of the path; raises ApiError if it does not exist."""
    vhost = call.vhost
    if vhost is None or vhost not in call.broker.vhosts:
        raise not_found()
    return vhost


def check_node_name(call: Call) -> None:
    """Check that the node of the path, if there is one, is this one; raises ApiError."""
    node = call.broker.node_name
    if call.names.get("node", node) != node:
        raise not_found()
