"""The offsets of a stream that consumers have reached, so that consumers with their tags continue there."""

from leveret.storage.journal import offsets
from leveret.storage.queues.pager import Pager


class ConsumerOffsets:
    """The offset that each consumer whose offset is kept gets next, by its tag.

    Args:
        pager: of the stream; None to keep everything in memory.
        qid: of the stream.
    """

    __slots__ = ("_changed", "_pager", "_qid", "by_tag")

    def __init__(self, pager: Pager | None, qid: int) -> None:
        self._pager = pager
        self._qid = qid
        self.by_tag: dict[str, int] = {}
        """Ascending by the time of the last change in this run."""
        self._changed: dict[str, None] = {}  # tags with an offset that the journal has not

    def reach(self, tag: str, offset: int) -> None:
        """Keep an offset; a later commit writes it, as it does with acks."""
        self.by_tag.pop(tag, None)
        self.by_tag[tag] = offset
        if self._pager is not None:
            is_noted = bool(self._changed)
            self._changed[tag] = None
            if not is_noted and not self._pager.journal.before_cut(self._note):
                self._note()

    def _note(self) -> None:
        changed, self._changed = self._changed, {}
        for tag in changed:
            self._pager.journal.put(offsets.TABLE, *offsets.pack_row(self._qid, tag, self.by_tag[tag]))  # type: ignore[union-attr] # it has noted them

    def forget(self, tag: str) -> None:
        """Forget the offset of a consumer."""
        del self.by_tag[tag]
        self._changed.pop(tag, None)
        if self._pager is not None:
            self._pager.journal.delete(offsets.TABLE, offsets.pack_key(self._qid, tag))

    def clear(self) -> None:
        """Forget all offsets."""
        for tag in list(self.by_tag):
            self.forget(tag)
