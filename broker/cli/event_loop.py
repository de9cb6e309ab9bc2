"""The event loop of a command: uvloop's where that is installed, asyncio's own elsewhere (driver)."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops; None, for asyncio's own loop, where uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - most commands need no event loop
    except ImportError:
        return None
    return uvloop.new_event_loop
