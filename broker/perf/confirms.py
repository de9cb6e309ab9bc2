"""The receiving side of a producer's connection: confirms and returned messages."""

from leveret.broker.amqp.commands import Basic
from leveret.broker.amqp.fastpath import BASIC_ACK, unpack_ack
from leveret.broker.client.frames import FIELDS_AT, Incoming
from leveret.broker.perf.producer import Producer
from leveret.broker.perf.tally import Tally

BASIC_NACK = Basic.Nack.index
BASIC_RETURN = Basic.Return.index


class Confirms(Incoming):
    """The receiving side of a producer's connection: confirms, and returned messages.

    Attributes:
        producer: the producer on channel 1; None until it is set up.

    """

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally
        self.producer: Producer | None = None

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:
        """Count a confirm or a return."""
        if index in {BASIC_ACK, BASIC_NACK} and self.producer is not None:
            number, bits, _ = unpack_ack(data, at + FIELDS_AT)
            self.producer.settle(number, now, multiple=bool(bits & 1), acked=index == BASIC_ACK)
            return True
        if index == BASIC_RETURN:
            self._tally.returned += 1
            return True
        return False
