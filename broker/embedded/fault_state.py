"""The faults (`embedded.faults`) in effect in a broker, as its connections, alarms and disk see them. Pure."""
# ruff: noqa: S311 - seeds make a run repeatable; nothing is secret

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from leveret.broker.amqp.fastpath import FRAME_OVERHEAD, TYPE_BODY, pack_confirm, unpack_frame

BEFORE_CONFIRM: Final = "before-confirm"
AFTER_CONFIRM: Final = "after-confirm"
MID_BODY: Final = "mid-body"
MOMENTS: Final = (BEFORE_CONFIRM, AFTER_CONFIRM, MID_BODY)  # when a connection can be dropped
SHARE_OF_DUPLICATES = 0.25  # share of the messages that a hostile broker delivers twice
LONGEST_DISTANCE = 3  # maximum number of younger messages that are delivered in between


class FaultState(msgspec.Struct, eq=False):
    """The faults of one broker. A new one has none."""

    nacks: int = 0  # number of further publishes to be refused
    holds_confirms: bool = False  # whether no confirms are sent
    moment: str = ""  # the moment at which the next connection is dropped; '' for never
    drops: int = 0  # number of connections to be dropped at it
    delay: float = 0.0  # seconds by which everything sent to clients is late
    # bytes a second that a connection with consumers takes; None for as many as there are
    rate: float | None = None
    refuses_logins: bool = False  # whether all logins are refused
    is_disk_full: bool = False  # whether every write finds the disk full
    # is_memory_short, is_disk_short: whether memory, or space on disk, is said to be short
    is_memory_short: bool = False
    is_disk_short: bool = False
    seed: int | None = None  # the seed of a hostile broker; None for one that is not

    def change(self, changes: Mapping[str, object]) -> None:
        """Set attributes."""
        for name, value in changes.items():
            setattr(self, name, value)

    def reset(self, names: Iterable[str] | None = None) -> None:
        """End the faults of attributes, or all."""
        none = FaultState()
        self.change({name: getattr(none, name) for name in names or self.__struct_fields__})

    def take_drop(self, moment: str) -> bool:
        """Return whether a connection that has reached this moment is to be dropped; it is counted then."""
        if self.moment != moment:
            return False
        self.drops -= 1
        if not self.drops:
            self.moment = ""
        return True

    @property
    def watches_publishes(self) -> bool:
        """True if publishes must not take the fast path."""
        return bool(self.nacks) or self.moment == MID_BODY

    @property
    def answers_late(self) -> bool:
        """True if unroutable publishes must not be confirmed at once, but with the others."""
        return self.holds_confirms or self.moment in {BEFORE_CONFIRM, AFTER_CONFIRM} or self.seed is not None

    @property
    def shapes_output(self) -> bool:
        """True if what is sent to clients must be looked at."""
        return self.moment == MID_BODY or self.seed is not None or self.delay > 0 or self.rate is not None


def middle_of_body(octets: bytes) -> int:
    """Return the middle of the first body of at least two octets in complete frames; 0 if there is none."""
    at = 0
    while at < len(octets):
        kind, _, length = unpack_frame(octets, at)
        if kind == TYPE_BODY and length > 1:
            return at + FRAME_OVERHEAD - 1 + int(length) // 2
        at += length + FRAME_OVERHEAD
    return 0


def interleaved(octets: bytes, seed: str) -> bytes:
    """Return complete frames in another order, as chosen by the seed; those of each channel stay in order."""
    of_channels: dict[int, list[bytes]] = {}
    at = 0
    while at < len(octets):
        _, channel, length = unpack_frame(octets, at)
        end = at + length + FRAME_OVERHEAD
        of_channels.setdefault(channel, []).append(octets[at:end])
        at = end
    if len(of_channels) == 1:
        return octets
    order = [channel for channel, frames in of_channels.items() for _ in frames]
    random.Random(seed).shuffle(order)
    left = {channel: iter(frames) for channel, frames in of_channels.items()}
    return b"".join([next(left[channel]) for channel in order])


def distance_of_duplicate(seed: int, seq_id: int) -> int | None:
    """Return after how many younger messages a message is delivered again; None for one that is delivered once."""
    choice = random.Random(f"{seed}/{seq_id}")
    return None if choice.random() >= SHARE_OF_DUPLICATES else choice.randrange(LONGEST_DISTANCE + 1)


class Duplicates:
    """The messages of one consumer that wait for their second delivery."""

    def __init__(self) -> None:
        self._delivered = 0  # number of first deliveries
        self._waiting: dict[int, int] = {}  # by seq_id, the first deliveries after which a message is due

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def delivered(self, seed: int, seq_id: int) -> bool:
        """Count a first delivery; return whether the message waits for a second one from now on."""
        self._delivered += 1
        distance = distance_of_duplicate(seed, seq_id)
        if distance is None:
            return False
        self._waiting[seq_id] = self._delivered + distance
        return True

    @property
    def is_due(self) -> bool:
        """True if some message must be delivered again before anything else."""
        return any(due <= self._delivered for due in self._waiting.values())

    def take_due(self) -> list[int]:
        """Remove the messages that are due, and return them."""
        due = [seq_id for seq_id, when in self._waiting.items() if when <= self._delivered]
        for seq_id in due:
            del self._waiting[seq_id]
        return due

    def take_all(self) -> list[int]:
        """Remove all messages, and return them."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting)


class SingleConfirms:
    """Takes the confirms of a channel apart: one for each publish, in an order chosen by a seed."""

    def __init__(self) -> None:
        self._low = 0  # all numbers up to here have been confirmed or nacked
        self._told: set[int] = set()  # those above

    def told(self, confirms: Sequence[tuple[int, bool, bool]], channel: int, seed: str) -> list[bytes]:
        """Return the frames for confirms, given as delivery tag, multiple, ack; without a seed only record them."""
        frames = []
        for tag, multiple, ack in confirms:
            if not multiple:
                numbers = [tag]
                self._told.add(tag)
            elif seed:
                numbers = [each for each in range(self._low + 1, tag + 1) if each not in self._told]
            if multiple and tag > self._low:
                self._low = tag
                self._told = {each for each in self._told if each > tag}
            if seed:
                frames += [pack_confirm(channel, each, multiple=False, ack=ack) for each in numbers]
        while self._low + 1 in self._told:
            self._low += 1
            self._told.discard(self._low)
        if seed:
            random.Random(f"{seed}/{self._low}").shuffle(frames)
        return frames
