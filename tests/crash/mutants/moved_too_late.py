"""Mutant: a transfer removes messages at once, and puts them into their destination some commits later."""

import asyncio

from leveret.broker.transfer import transfer

SECONDS = 0.02

_send = transfer.send


def send(original, resolved, blob_threshold, _on_safe):
    asyncio.get_running_loop().call_later(SECONDS, lambda: _send(original, resolved, blob_threshold, None))
    return True


transfer.send = send
