"""Clients that speak another protocol than the port."""

import logging
import socket
from urllib.parse import urlsplit

import leveret

AMQP = b"AMQP\x00\x00\x09\x01"


def answer(host: str | None, port: int | None, octets: bytes) -> bytes:
    with socket.create_connection((host, port), timeout=10) as client:
        client.sendall(octets)
        return client.recv(100)


def test_a_client_on_the_port_of_another_protocol_is_told_in_one_line(caplog):
    """AMQP on a port of HTTP, HTTP and TLS on the port of AMQP; the line says which port is meant. Others have none."""
    caplog.set_level(logging.INFO)
    with leveret.Broker(management=True) as broker:
        page, amqp = urlsplit(broker.management_url), urlsplit(broker.url)
        for _ in range(3):
            assert b"HTTP/1.0 400" in answer(page.hostname, page.port, AMQP)
        answer(page.hostname, page.port, b"NONSENSE\r\n\r\n")
        assert AMQP == answer(amqp.hostname, amqp.port, b"GET / HTTP/1.1\r\n\r\n")
        broker.wait_until_idle()
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]

    assert 2 >= len(lines)  # one in a second for an address
    assert "a client from 127.0.0.1 speaks AMQP on an HTTP port: let it use the port of AMQP" in lines[0]


def test_http_on_the_port_of_amqp_is_told(caplog):
    """With the port of the page."""
    with leveret.Broker() as broker:
        amqp = urlsplit(broker.url)
        answer(amqp.hostname, amqp.port, b"GET /api/overview HTTP/1.1\r\n\r\n")

    assert "an HTTP client on the port of AMQP: the web page and the management API are on" in caplog.text
