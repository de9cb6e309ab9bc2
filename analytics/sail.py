"""The session of Sail, an engine without Java that runs the same jobs (driver: a server in this process, sockets).

Sail speaks Spark's protocol for remote clients, so PySpark is its client and jobs are the same code. Its server listens
on loopback and has no login. On Linux new connections are dropped as soon as this process has its own, so that nobody
else of this machine can use it; where that is not possible it is not used unless it is asked for by name.
"""

import contextlib
import ctypes
import importlib.util
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.analytics.session import DEFAULTS

MOST_BYTES: Final = 4 << 30
"""Size of inputs from which Spark is the default: what Sail keeps in memory grows with them."""
PACKAGES: Final = ("pysail", "grpc", "grpc_status", "pandas", "pyarrow")
SETTINGS: Final = {
    name: DEFAULTS[name]
    for name in ("spark.sql.session.timeZone", "spark.python.sql.dataFrameDebugging.enabled")
}
_CONNECTED: Final = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
"""Environment variables by which PySpark decides that expressions are for a remote session."""
_LOG: Final = "RUST_LOG"
_ATTACH_FILTER: Final = 26
"""SO_ATTACH_FILTER of Linux, which the module socket does not name."""
_DROP_ALL: Final = struct.pack("=HBBI", 0x06, 0, 0, 0)
"""A program of Linux' packet filter: return 0, which is to keep nothing of a packet."""
_ESTABLISHED: Final = "01"


class SailError(Exception):
    """Raised when Sail cannot be used here; the text says why."""


def lacks() -> str:
    """Return the package that is missing for Sail; empty if all are there."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), "")


@contextlib.contextmanager
def session(*, guarded: bool = True) -> Iterator[SparkSession]:
    """Start Sail for the duration of a `with` block.

    A process has one session at a time, of Sail or of Spark.

    Args:
        guarded: refuse to run where others on this machine could use the server.

    Raises:
        SailError: Sail cannot be used here.
    """
    if missing := lacks():
        raise SailError(f"missing package {missing}")
    os.environ.setdefault(_LOG, "error")
    from pysail.spark import SparkConnectServer  # noqa: PLC0415 - an optional package

    # What a server does not know is an error of the job that needs it, and is told as that.
    logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    try:
        address = server.listening_address
        if address is None:
            raise SailError("its server does not listen")
        with _connected(*address, guarded=guarded) as spark:
            yield spark
    finally:
        server.stop()


@contextlib.contextmanager
def _connected(host: str, port: int, *, guarded: bool) -> Iterator[SparkSession]:
    spark = SparkSession.builder.remote(f"sc://{host}:{port}").create()
    try:
        try:
            for name, value in SETTINGS.items():
                spark.conf.set(name, value)
        except PySparkException as error:
            # Versions of PySpark that it does not know yet, for one.
            raise SailError(_first_line(error)) from error
        if guarded:
            close_door(port)
        yield spark
    finally:
        # Otherwise PySpark would do it at the end of the process, and wait for a server that is gone.
        with contextlib.suppress(PySparkException):
            spark.stop()
        for name in _CONNECTED:
            os.environ.pop(name, None)


def close_door(port: int) -> None:
    """Have Linux drop new connections to a listening socket of this process, which must have exactly one by now.

    Raises:
        SailError: this is another system, or there was another connection.
    """
    if not sys.platform.startswith("linux"):
        raise SailError("on this system every user of the machine could use its server")
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    # struct sock_fprog: the number of instructions, and where they are.
    filter_ = struct.pack("@HP", len(_DROP_ALL) // 8, ctypes.addressof(program))
    try:
        for listener in _listeners(port):
            with listener:
                listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filter_)
                break
        else:
            raise SailError("its socket was not found")
        connections = _connections(port)
    except OSError as error:
        raise SailError(f"its socket cannot be closed to others: {error.strerror}") from error
    if connections != 1:
        raise SailError("somebody else on this machine has connected to its server")


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yield the sockets of this process that listen on a port, as duplicates."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            found = socket.socket(fileno=os.dup(int(entry.name)))
            try:
                listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listens and found.family == socket.AF_INET and found.getsockname()[1] == port:
                    yield found
                    continue
            except OSError:
                pass
            found.close()


def _connections(port: int) -> int:
    """Return the number of connections to a port of this machine."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(int(row[1].rpartition(":")[2], 16) == port and row[3] == _ESTABLISHED for row in rows)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line]
    return lines[0] if lines else repr(error)
