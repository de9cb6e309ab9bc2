"""The session of Sail, an engine without Java that runs the same jobs (driver: a server in this process, sockets).

Sail speaks Spark's protocol for remote clients, so PySpark is its client and jobs are the same code. Its server listens
on loopback and has no login. On Linux it gets no more connections as soon as this process has its own, so that nobody
else of this machine can use it; where that is not possible it is not used unless it is asked for by name.
"""

import contextlib
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from leveret.analytics.session import DEFAULTS

MOST_BYTES: Final = 4 << 30
"""Size of inputs from which Spark is the default: what Sail keeps in memory grows with them."""
PACKAGES: Final = ("pysail", "grpc", "grpc_status", "pandas", "pyarrow")
SETTINGS: Final = {
    name: DEFAULTS[name]
    for name in ("spark.sql.session.timeZone", "spark.python.sql.dataFrameDebugging.enabled")
}
_REMOTE: Final = "SPARK_CONNECT_MODE_ENABLED"
_CONNECTED: Final = (_REMOTE, "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
"""Environment variables by which PySpark decides that expressions are for a remote session."""
_VARIABLES: Final = {
    "RUST_LOG": "error",
    # After this time without a query, by default 15 minutes, it forgets a session: `--serve` waits for longer.
    "SAIL_SPARK__SESSION_TIMEOUT_SECS": str(10 * 365 * 86_400),
}
"""Settings of Sail, which takes them from the environment."""
_CHANNEL: Final = {
    # A proxy of the user's is not for loopback: what it connects to is not this machine.
    "grpc.enable_http_proxy": 0,
    # After half an hour without a query gRPC would connect anew, and find the door closed.
    "grpc.client_idle_timeout_ms": 2**31 - 1,
}
"""Options of the connection."""
_LISTENS: Final = "0A"


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
        raise SailError(f"missing package {missing}; install it with: pip install 'leveret[analytics,sail]'")
    with contextlib.ExitStack() as stack:
        try:
            spark = _connected(stack, guarded=guarded)
        except SailError:
            raise
        except Exception as error:
            # Versions of PySpark, or of what it needs, that do not go together, for one.
            raise SailError(_first_line(error)) from error
        yield spark


def _connected(stack: contextlib.ExitStack, *, guarded: bool) -> SparkSession:
    """Start a server and connect to it; both end with the stack."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    from pysail.spark import SparkConnectServer  # noqa: PLC0415 - an optional package
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 - as above
    from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: PLC0415 - as above

    # What a server does not know is an error of the job that needs it, and is told as that.
    logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    stack.callback(server.stop)
    if server.listening_address is None:
        raise SailError("its server does not listen")
    host, port = server.listening_address
    stack.callback(_forget)
    os.environ[_REMOTE] = "1"  # as `SparkSession.builder.create` does
    builder: Any = RemoteSession.builder
    channel = DefaultChannelBuilder(f"sc://{host}:{port}", list(_CHANNEL.items()))
    spark: SparkSession = builder.channelBuilder(channel).create()
    stack.callback(_stop, spark)
    # A server of this process that is gone does not come back, and PySpark would try for ten minutes.
    client: Any = spark.client
    client.set_retry_policies([])
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    if guarded:
        close_door(port)
    return spark


def _stop(spark: SparkSession) -> None:
    # Otherwise PySpark would do it at the end of the process, and wait for a server that is gone.
    with contextlib.suppress(Exception):  # the server may be gone
        spark.stop()


def _forget() -> None:
    """Have PySpark make expressions for Spark in this process again."""
    for name in _CONNECTED:
        os.environ.pop(name, None)


def close_door(port: int) -> None:
    """Close the listening socket of this process that has a port; there must be exactly one connection to it by now.

    The server keeps the number of its file, which is that of a socket that does nothing, so that it does not notice:
    after an error it would try for ever. A packet filter, which leaves the socket alone, is for root on some kernels.

    Raises:
        SailError: this is another system, or there was another connection.
    """
    if not sys.platform.startswith("linux"):
        raise SailError("on this system every user of the machine could use its server")
    try:
        listening = [*_listening(port)]
        with socket.socket(socket.AF_UNIX) as nothing:
            for number in listening:
                os.dup2(nothing.fileno(), number, inheritable=False)
        connections = _connections(port)
    except OSError as error:
        raise SailError(f"its socket cannot be closed to others: {error.strerror}") from error
    if not listening:
        raise SailError("its socket was not found")
    if connections != 1:
        raise SailError("somebody else on this machine has connected to its server")


def _listening(port: int) -> Iterator[int]:
    """Yield the numbers of the files of this process that are sockets listening on a port."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(int(entry.name))) as found:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and found.family == socket.AF_INET and found.getsockname()[1] == port:
                yield int(entry.name)


def _connections(port: int) -> int:
    """Return the number of connections to a port of this machine, also of those that one side has closed."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(int(row[1].rpartition(":")[2], 16) == port and row[3] != _LISTENS for row in rows)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line]
    return lines[0] if lines else repr(error)
