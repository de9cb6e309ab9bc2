"""Held messages that an operator releases, cancels, reschedules, moves or copies, by a condition.

An operation looks at the messages that were held when it began, a piece at a time, and acts on each piece before it
looks at the next: those that came due meanwhile are left out. One operation runs for each queue at a time.
"""

from collections.abc import Collection
from functools import partial
from typing import Any, Final

from leveret.broker.administration.access import BadRequestError, BusyError, Group
from leveret.broker.administration.detached_channel import check_permission
from leveret.broker.administration.messages import Steps, condition_of, found_queue, next_piece
from leveret.broker.administration.transfers import EVERYTHING, Chosen, another_queue
from leveret.broker.auth.users import User
from leveret.broker.errors import resource
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.queue.due_time import LATEST
from leveret.broker.queue.hold import Hold
from leveret.broker.queue.queue import Queue
from leveret.storage.delayed import Due
from leveret.storage.message import Message

ACTS: Final = ("release", "cancel", "reschedule", "move", "copy")


class HeldMessages(Group):
    """Held messages."""

    def act(
        self,
        actor: User | None,
        vhost: str,
        name: str,
        act: str,
        to: int | None = None,
        destination: str = "",
        chosen: Chosen = EVERYTHING,
    ) -> Steps[dict[str, int]]:
        """Act on messages that a queue holds; the user needs read and configure on it, and write on a `destination`.

        `act` is 'release' to have them delivered now, 'cancel' to remove them, 'reschedule' to change their time, or
        'move' or 'copy' to have another queue hold them until the same time, as many as it may. `to` is the new time
        (epoch ms), with 'reschedule' only; one that has passed releases them. Raises NotFoundError and ForbiddenError
        as for a client, BadRequestError for an invalid condition or time, and BusyError while another operation runs.
        Returns how many were `examined`, `matched` the condition, and were still held: `done`.
        """
        if act not in ACTS:
            raise BadRequestError(f"action must be one of {', '.join(ACTS)}")
        if chosen.limit is not None and chosen.limit < 1:
            raise BadRequestError("limit must be at least 1")
        if (to is None) is (act == "reschedule"):
            raise BadRequestError("'to' is the new time, with 'reschedule' only")
        if bool(destination) is not (act in {"move", "copy"}):
            raise BadRequestError("'destination' is a queue, with 'move' and 'copy' only")
        if to is not None and not 0 <= to <= LATEST:
            raise BadRequestError(f"'to' must be from 0 to {LATEST} ms since 1970")
        place, queue = found_queue(self._broker, actor, vhost, name)
        check_permission(self._broker, actor, place, "configure", "queue", name)
        now = self._broker.wall_clock()
        do: Any = Hold.cancel if act == "cancel" else partial(Hold.move, to=now if to is None else to)
        if destination:
            other = another_queue(self._broker, actor, place, queue, destination)
            do = partial(_give, other=other, is_copy=act == "copy")
        matches = condition_of(chosen.where).matches
        hold = queue.hold
        if hold is not None and hold.is_busy:
            raise BusyError(f"held messages of {resource('queue', name, vhost)} are being changed already")
        return _act(
            hold, do, chosen, lambda due, message: matches(MessageFacts(message, now=now, due=due[0]))
        )


def _give(hold: Hold, messages: dict[Due, Message], other: Queue, *, is_copy: bool) -> Collection[Due]:
    """Have another queue hold messages, those for which it has room."""
    target = None if other.deleted else other.need_hold()
    if target is None or other.limits is None:
        return ()
    obstacle = other.limits.length.obstacle
    chosen: dict[Due, Message] = {}
    for due, message in messages.items():
        if not target.is_full(len(chosen)) and not obstacle(message, len(chosen), 0):
            chosen[due] = message
    found = sorted(chosen if is_copy else hold.cancel(chosen))
    target.take([(due[0], chosen[due]) for due in found])
    return found


def _act(hold: Hold | None, do: Any, choice: Chosen, matches: Any) -> Steps[dict[str, int]]:
    if hold is None:
        return {"examined": 0, "matched": 0, "done": 0}
    examined = matched = done = 0
    snapshots: list[Any] = []
    pieces, window = hold.pieces(snapshots), hold.window
    hold.is_busy = True
    try:
        while hold.window is window and not hold.deleted and matched != choice.limit:
            if (piece := (yield from next_piece(pieces))) is None:
                break
            examined += len(piece)
            chosen: dict[Due, Message] = {}
            for due, message in piece:
                if matched != choice.limit and matches(due, message):
                    chosen[due] = message
                    matched += 1
                yield None
            if chosen and hold.window is window and not hold.deleted:
                done += len(chosen if choice.is_dry else do(hold, chosen))
            yield None
        return {"examined": examined, "matched": matched, "done": done}
    finally:
        hold.is_busy = False
        pieces.close()
        for snapshot in snapshots:
            snapshot.close()
