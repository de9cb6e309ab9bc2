"""Writes to a file, each flushed, that no thread waits for: Linux's asynchronous input and output (driver).

A thread that writes costs the event loop more than the disk does, if the disk is fast: to wake it up, to share the
interpreter with it, and to be woken up by it. The kernel does it instead (`io_submit(2)`, to a file open with O_DIRECT
and O_DSYNC, which is one write and one flush), and the event loop learns from an eventfd that it is done.

Other systems and some sandboxes do not have it, some file systems do not allow O_DIRECT, and some wait for the disk in
`io_submit`. Then the caller takes a thread.
"""

import asyncio
import contextlib
import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Callable
from struct import Struct
from time import monotonic_ns
from typing import Self

PAGE = 4096  # bytes of which the place and the size of a write are multiples
HELD_NS = 250_000  # ns that a submission may take: above, the file system seems to wait for the disk in it
HELD_PART = 20  # nothing is submitted then for so many times as long: a twentieth of the time is held
REFUSED_NS = 60_000_000_000
"""Nanoseconds for which nothing is submitted after the kernel or the file system has refused something."""
REFUSED = frozenset(
    (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EPERM)
)
"""Errors of a write that is not possible in this way, or not now: they tell nothing of the disk. File systems with
larger pages refuse places that are multiples of `PAGE` so."""

_CALLS = {  # numbers of io_setup, io_destroy, io_getevents and io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}
_PWRITE = 1
_TELL_EVENTFD = 1
_REQUEST = Struct("<QIIHhIQQqQII")
"""struct iocb: data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved, flags, eventfd."""
_WHAT = Struct("<IQQq")
_WHAT_AT = 20  # the part of it that is new each time, from the descriptor to the offset
_EVENT = Struct("<QQqq")  # struct io_event: data, request, result, second result

Done = Callable[[OSError | None], object]


class AsyncWrites:
    """One write at a time, through a buffer of a fixed size.

    Args:
        loop: calls back.
        size: bytes of the buffer.

    Raises OSError where there is no such thing; `open` returns None instead.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or calls is None or sys.maxsize < 1 << 32:
            raise OSError(errno.ENOSYS, "no asynchronous writes on this system")
        self._setup, self._destroy, self._get_events, self._submit = map(ctypes.c_long, calls)
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._loop = loop
        self._one = ctypes.c_long(1)
        self._buffer = mmap.mmap(-1, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._size = 0  # bytes that are being written; 0 if none are
        self._done: Done | None = None
        self._not_before = 0
        self._context = ctypes.c_ulong(0)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        constant = _REQUEST.pack(0, 0, 0, _PWRITE, 0, 0, 0, 0, 0, 0, _TELL_EVENTFD, self._eventfd)
        self._request = ctypes.create_string_buffer(constant, _REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        try:
            self._set_up()
            loop.add_reader(self._eventfd, self._ready)
        except BaseException:
            self._free()
            raise

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop, size: int) -> Self | None:
        """Return one, or None where that is not possible."""
        with contextlib.suppress(OSError, NotImplementedError):  # the latter of a loop that has no readers
            return cls(loop, size)
        return None

    @property
    def is_ready(self) -> bool:
        """True unless a write is under way, submissions seem to wait for the disk, or it is closed."""
        return (
            not self._size
            and self._eventfd >= 0
            and (not self._not_before or monotonic_ns() >= self._not_before)
        )

    def start(self, descriptor: int, octets: bytes, offset: int, done: Done) -> bool:
        """Begin to write some bytes, and whatever up to the end of a page, and to flush them.

        Args:
            descriptor: a file open with O_DIRECT and O_DSYNC, until `done` is called or `close` has returned.
            octets: at least one.
            offset: where in the file; a multiple of `PAGE`.
            done: called in a later iteration of the loop with None, or the error.

        Returns false if they are too many, or the kernel refuses them at once: nothing is written then, and `done` is
        not called. A later refusal is one of the errors in `REFUSED`; the bytes may be written then, or a part of them.
        """
        size = -(-len(octets) // PAGE) * PAGE
        if size > len(self._buffer):
            return False
        self._buffer[: len(octets)] = octets
        _WHAT.pack_into(self._request, _WHAT_AT, descriptor, self._address, size, offset)
        began = monotonic_ns()
        submitted = self._call(self._submit, self._context, self._one, self._requests)
        now = monotonic_ns()
        if submitted != 1:
            self._not_before = now + REFUSED_NS
            return False
        self._not_before = now + HELD_PART * (now - began) if now - began > HELD_NS else 0
        self._size, self._done = size, done
        return True

    def _ready(self) -> None:
        """Take the result of the write."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        result = self._result()
        if result is None:
            return
        if -result in REFUSED:
            self._not_before = monotonic_ns() + REFUSED_NS
        size, self._size = self._size, 0
        done, self._done = self._done, None
        if done is not None:
            done(None if result == size else _error(result))

    def close(self) -> None:
        """Wait for the write that is under way; `done` is not called any more. May be called again."""
        if self._eventfd >= 0:
            self._loop.remove_reader(self._eventfd)
            self._free()

    def _set_up(self) -> None:
        if self._call(self._setup, self._one, ctypes.byref(self._context)) < 0:
            raise _error(-ctypes.get_errno())
        if (refused := self._result()) is not None:  # by a sandbox; not only when something waits for it
            raise _error(refused)

    def _result(self) -> int | None:
        """Take the result of a write: bytes, or a negative error, also that of this call. None if there is none yet."""
        count = self._call(self._get_events, self._context, ctypes.c_long(0), self._one, self._event, None)
        if count < 0:
            return -ctypes.get_errno()
        result: int = _EVENT.unpack(self._event)[2]
        return result if count else None

    def _free(self) -> None:
        if self._context.value:
            self._call(self._destroy, self._context)
            self._context.value = 0
        os.close(self._eventfd)
        self._eventfd = -1


def _error(result: int) -> OSError:
    """Return the error of a write; less than was to be written is a lack of space."""
    code = -result if result < 0 else errno.ENOSPC
    return OSError(code, os.strerror(code))
