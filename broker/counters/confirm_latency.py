"""How long publishers wait for their confirms: of each channel one number in `SAMPLE_EVERY` at most is watched.

Theory. As of a queue's messages (`broker.counters.sampling`) any number that came in a turn may be the one that is
watched, and it stands for all since the one before. Where confirms wait long, fewer are watched, so that a channel
with a million open numbers has no more to look at than one with a hundred.
"""

from leveret.broker.counters.sampling import SAMPLE_EVERY, MeteringTurn, next_place, one_of
from leveret.confirm.channel_confirms import ChannelConfirms

WATCHED_CONFIRMS = 8
"""Numbers of a channel that are watched at once, at most: then every other one is not watched any more."""


class ConfirmTimes:
    """The watched numbers of one channel in confirm mode.

    Attributes:
        due: the number from which on the next is to be watched.
        watched: those that are not told yet: number, confirm mode, when it came (ns), for how many it stands.

    """

    __slots__ = ("_every", "_last", "_place", "due", "watched")

    def __init__(self) -> None:
        self.due = 1
        self.watched: list[tuple[int, str, int, int]] = []
        self._last = 0
        """Up to which number those that were watched stand for others."""
        self._every = SAMPLE_EVERY
        self._place = 0

    def look(self, confirms: ChannelConfirms, came: int, turn: MeteringTurn) -> None:
        """Have the time noted of those that are told now; `came` as for `watch`."""
        latencies = turn.latencies
        waiting = []
        for watched in self.watched:
            if watched[0] in confirms.held:
                waiting.append(watched)
            else:
                latencies.ended(latencies.confirm[watched[1]], *watched[2:])
        self.watched = waiting
        if not waiting and self._every > SAMPLE_EVERY:
            self._every = SAMPLE_EVERY
            self._last = confirms.seq_no - came  # those of a long wait are not like what comes
            self.due = self._last + SAMPLE_EVERY

    def watch(self, confirms: ChannelConfirms, came: int, mode: str, turn: MeteringTurn) -> None:
        """Have the time noted of one of the numbers that came in this turn, or watch it until it is told.

        Args:
            confirms: has told what may be told.
            came: how many numbers this turn has had, at least one.
            mode: what the last of them waits for; it is taken for that of all.
            turn: this one.

        """
        last = confirms.seq_no
        self._place = next_place(self._place)
        number = one_of(last, came, self._place)
        stands_for = last - self._last
        self._last = last
        if number not in confirms.held:
            turn.latencies.ended(turn.latencies.confirm[mode], turn.now, stands_for)
        else:
            if len(self.watched) >= WATCHED_CONFIRMS:
                self._thin_out()
            self.watched.append((number, mode, turn.now, stands_for))
        self.due = last + self._every

    def _thin_out(self) -> None:
        """Watch every other number only, and every other of those that come."""
        early, late = self.watched[::2], self.watched[1::2]
        self.watched = [(*two[:3], one[3] + two[3]) for one, two in zip(early, late, strict=True)]
        self._every *= 2
