"""The publisher of a message that moves before it is on disk is told when its first place has forgotten it."""

from broker import dead_lettering
from storage.message import Message

_init = dead_lettering._Letter.__init__


def init(letter, message, copies, original, queue, seq_id):
    _init(letter, message, copies, Message(b"\0\0", original.content, original.channel_id), queue, seq_id)


dead_lettering._Letter.__init__ = init
