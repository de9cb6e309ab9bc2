"""Large bodies on their way through the log: chunks are applied before the batch that names their body.

Bodies that are not named when the epoch changes never will be: their leader is gone. Open bodies are part of the state:
a snapshot contains them, or the batch that names them could not be applied to it.
"""

from leveret.broker.replication.chain import BadEntryError, Batch, BodyChunk
from leveret.broker.replication.engine import Entry


class OpenBodies:
    """The bodies whose chunks were applied and that no batch has named.

    Args:
        epoch: of the last entry that was applied.
        sizes: bytes of each body so far.
        whole: those of them that are complete.

    """

    def __init__(
        self, epoch: int = 0, sizes: dict[int, int] | None = None, whole: frozenset[int] = frozenset()
    ) -> None:
        self.epoch = epoch
        self.sizes = dict(sizes or {})
        self.whole = set(whole)

    def begin(self, entry: Entry) -> list[int]:
        """Begin to apply an entry; returns the bodies to remove, which a former leader has left."""
        if entry.epoch == self.epoch:
            return []
        self.epoch = entry.epoch
        left = sorted(self.sizes)
        self.sizes.clear()
        self.whole.clear()
        return left

    def take(self, chunk: BodyChunk) -> None:
        """Add a chunk.

        Raises:
            BadEntryError: it does not follow the last one of its body.

        """
        if chunk.offset != self.sizes.get(chunk.body, 0) or chunk.body in self.whole:
            raise BadEntryError(f"a chunk of the body {chunk.body} does not follow the one before it")
        self.sizes[chunk.body] = chunk.offset + len(chunk.data)
        if chunk.is_last:
            self.whole.add(chunk.body)

    def close(self, batch: Batch) -> None:
        """Forget the bodies that a batch names or drops.

        Raises:
            BadEntryError: one that it names is not complete.

        """
        for body in batch.named:
            if body not in self.whole:
                raise BadEntryError(f"the body {body} is named before all of it is in the log")
        for body in (*batch.named, *batch.dropped):
            self.sizes.pop(body, None)
            self.whole.discard(body)
