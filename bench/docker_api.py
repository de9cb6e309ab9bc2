"""A server that answers like Docker as far as test suites need it to get a broker in a container."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextlib.contextmanager
def containers(broker: contextlib.AbstractContextManager[tuple[str, int]]) -> Iterator[int]:
    """Serve the API of Docker; every container is the same broker.

    Args:
        broker: runs the broker, and returns its address.

    Returns:
        The port of the API on 127.0.0.1.

    """
    with broker as (host, port), ThreadingHTTPServer(("127.0.0.1", 0), handler(host, port)) as server:
        thread = threading.Thread(target=server.serve_forever, name="docker-api")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def handler(host: str, port: int) -> type[BaseHTTPRequestHandler]:
    """Return a class that answers every request with a container that listens at an address."""
    bound = [{"HostIp": host, "HostPort": str(port)}]
    container = {
        "Id": "broker",
        "State": {"Running": True},
        # The port of TLS is that of the others: a suite may ask for it without using it.
        "NetworkSettings": {"Ports": {"5672/tcp": bound, "5671/tcp": bound}},
    }
    content = json.dumps(container).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base class

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
