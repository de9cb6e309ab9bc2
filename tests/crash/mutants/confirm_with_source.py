"""The publisher of a message that moves before it is on disk is told when its first place has forgotten it."""

from broker import dead_lettering
from storage.message import Message

_init = dead_lettering._Heir.__init__


def init(heir, original, queue):
    _init(heir, Message(b"\0\0", original.content, original.channel_id), queue)


dead_lettering._Heir.__init__ = init
