"""Exits with 0 if the broker in this container answers the first words of AMQP, with 1 if it does not.

It asks where RABBITMQ_NODE_IP_ADDRESS and RABBITMQ_NODE_PORT say, or on port 5672 of this host. A broker that a
configuration file has put elsewhere needs RABBITMQ_NODE_PORT for this as well.
"""

import os
import socket
import sys

SECONDS = 4.0
HEADER = b"AMQP\x00\x00\x09\x01"
# connection.start: a method frame (1) of channel 0, then four octets of length, then class 10, method 10
LENGTH_AT, CLASS_AT, END = 3, 7, 11


def answer(host: str, port: int) -> bytes:
    """The first octets with which a broker answers the protocol header; raises OSError if none comes."""
    received = b""
    with socket.create_connection((host, port), SECONDS) as connection:
        connection.sendall(HEADER)
        while len(received) < END:
            octets = connection.recv(END - len(received))
            if not octets:
                break
            received += octets
    return received


def main() -> int:
    """The exit code."""
    host = os.environ.get("RABBITMQ_NODE_IP_ADDRESS") or "127.0.0.1"
    port = os.environ.get("RABBITMQ_NODE_PORT") or "5672"
    try:
        received = answer(host, int(port))
    except (OSError, ValueError) as error:
        print(f"no answer from {host}:{port}: {error}", file=sys.stderr)
        return 1
    if received[:LENGTH_AT] + received[CLASS_AT:END] != b"\x01\x00\x00\x00\x0a\x00\x0a":
        print(f"{host}:{port} does not speak AMQP: {received!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
