"""The management API against clients that mean no good: SEC-20, 21, 22, 24."""

import base64
import http.client
import json
import socket
from typing import Any
from urllib.parse import quote

import pytest

from leveret.broker.http.server import BODY, LARGE_BODY

SECONDS = 60.0
LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()


def ask(
    broker: Any, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Return the status, headers and body of the answer to a request of the administrator."""
    connection = http.client.HTTPConnection(*broker.management, timeout=SECONDS)
    try:
        connection.request(method, path, body, {"authorization": LOGIN, **headers})
        answer = connection.getresponse()
        octets = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()
    return answer.status, found, json.loads(octets) if "json" in found.get("content-type", "") else octets


def test_sec_20_an_announced_body_that_is_too_large_is_refused(broker):
    """Before it is sent: only its length is looked at."""
    with socket.create_connection(broker.management, timeout=SECONDS) as sock:
        head = f"PUT /api/vhosts/v HTTP/1.1\r\nHost: x\r\nAuthorization: {LOGIN}\r\nContent-Length: {BODY + 1}\r\n\r\n"
        sock.sendall(head.encode())
        answer = sock.recv(65536)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Exceeded HTTP request body size limit" in answer


def test_sec_20_a_body_without_a_length_is_cut(broker):
    """A body in chunks is refused as soon as it is too large, however long it goes on."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(broker.management, timeout=SECONDS) as sock:
        head = f"PUT /api/vhosts/v HTTP/1.1\r\nHost: x\r\nAuthorization: {LOGIN}\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(head.encode())
        sent = 0
        try:
            while sent < 3 * BODY:
                sock.sendall(chunk)
                sent += 0x10000
            answer = sock.recv(65536)
        except ConnectionError:
            answer = b""

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert 404 == ask(broker, "GET", "/api/vhosts/v")[0]


def test_sec_20_a_body_of_the_largest_size_is_read(broker):
    """It is not JSON then, which is what the answer says."""
    status, _, body = ask(broker, "PUT", "/api/vhosts/v", b"x" * BODY)

    assert (400, "not_json") == (status, body["reason"])


def test_sec_20_a_form_that_is_too_large_is_refused(broker):
    """The limit is that of the body, whatever kind it has: definitions come in forms, too."""
    head, tail = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n', b"\r\n--x--\r\n"
    form = {"content-type": "multipart/form-data; boundary=x"}
    small = head + b"{}" + tail
    assert 204 == ask(broker, "POST", "/api/definitions", small, **form)[0]
    try:
        status, _, body = ask(broker, "POST", "/api/definitions", head + b" " * LARGE_BODY + tail, **form)
    except ConnectionError:  # closed while we were sending
        return

    assert (400, "Exceeded HTTP request body size limit") == (status, body["reason"])


@pytest.mark.parametrize(
    "number", ["-1", "0", "x", "1e3", "9" * 50, "9" * 5000, "1.5", "%00", "NaN", "1_0", " 1", "\u0661"]
)
@pytest.mark.parametrize("key", ["page", "page_size"])
def test_sec_21_numbers_of_pages_are_checked(broker, key, number):
    """Whatever is no number in its bounds is 400, and never an error of the broker."""
    other = "page=1&" if key == "page_size" else ""
    quoted = number if number == "%00" else quote(number)
    status, _, body = ask(broker, "GET", f"/api/vhosts?{other}{key}={quoted}")

    assert 400 == status, body
    assert body["error"] in {"bad_request", "invalid_pagination_parameters", "page_out_of_range"}


@pytest.mark.parametrize("prefix", ["lengths", "msg_rates", "data_rates", "node_stats"])
@pytest.mark.parametrize(
    ("age", "step", "status"),
    [
        ("600", "5", 200),
        ("0", "5", 400),
        ("60", "0", 400),
        ("-1", "-1", 400),
        ("501", "1", 400),
        ("9" * 50, "1", 400),
        ("9" * 5000, "9" * 5000, None),
        ("x", "1", 200),
        ("1e3", "1.5", 200),
    ],
)
def test_sec_21_numbers_of_ranges_are_checked(broker, prefix, age, step, status):
    """No range has more than 500 samples; as in RabbitMQ one that is no number is as if it were not there."""
    query = f"{prefix}_age={age}&{prefix}_incr={step}"
    found, _, body = ask(broker, "GET", f"/api/overview?{query}")

    assert status in {None, found}, body
    assert found < 500


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/health/checks/port-listener/NUMBER", None),
        ("PUT", "/api/vhost-limits/%2F/max-queues", b'{"value": "NUMBER"}'),
        ("PUT", "/api/user-limits/guest/max-channels", b'{"value": "NUMBER"}'),
        (
            "POST",
            "/api/queues/%2F/none/get",
            b'{"count": "NUMBER", "ackmode": "reject_requeue_true", "encoding": "auto"}',
        ),
    ],
)
@pytest.mark.parametrize("number", ["-1e9", "9" * 50, "9" * 5000, "NaN", "1.5", "\u0661", ""])
def test_sec_21_numbers_in_paths_and_bodies_are_checked(broker, method, path, body, number):
    """Whatever is no number is an error of the client, or a check that fails; never an error of the broker."""
    octets = body and body.replace(b"NUMBER", number.encode())
    status, _, _ = ask(broker, method, path.replace("NUMBER", quote(number)), octets)

    assert 400 <= status < 500 or (status == 503 and method == "GET")


@pytest.mark.parametrize("path", ["/api/whoami", "/api/auth", "/api/openapi.json", "/api/none"])
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_sec_22_other_sites_read_nothing_of_the_api(broker, method, path):
    """No answer has a CORS header, whatever the origin of the request."""
    headers = {"origin": "https://example.com", "access-control-request-method": "PUT"}
    _, found, _ = ask(broker, method, path, **headers)

    assert [] == [name for name in found if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "path",
    [
        "/api/../etc/passwd",
        "/../../etc/passwd",
        "/api/%2e%2e/%2e%2e/etc/passwd",
        "/api/users/..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "//etc/passwd",
        "/api//etc/passwd",
        "/api/definitions/..%2f..%2fetc%2fpasswd",
    ],
)
def test_sec_24_requests_of_the_api_read_no_file(broker, path):
    """A path names objects of the broker only."""
    status, _, body = ask(broker, "GET", path)

    assert status in {400, 404}
    assert "root:" not in str(body)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "x%0d%0aset-cookie:%20a=b", 'x";y="z', "a" * 300])
def test_sec_24_names_of_downloads_are_plain(broker, name):
    """The name that a browser is told to save definitions under has no folders, and ends no header."""
    status, found, _ = ask(broker, "GET", f"/api/definitions?download={name}")

    assert 400 == status
    assert not {"content-disposition", "set-cookie"} & found.keys()


@pytest.mark.parametrize("name", ["..%2f..%2fevil", "%2fetc%2fevil", "a%00b", "%ff", "%2e%2e"])
def test_sec_24_names_of_the_api_write_no_file(broker, name):
    """Objects may have such names; nothing is made outside the data directory, nor in it by that name."""
    before = sorted(path.name for path in broker.running.data_dir.parent.rglob("*"))
    status, _, body = ask(broker, "PUT", f"/api/vhosts/{name}")
    assert status == 201, body
    assert 200 == ask(broker, "GET", f"/api/vhosts/{name}")[0]
    assert 204 == ask(broker, "DELETE", f"/api/vhosts/{name}")[0]

    assert before == sorted(path.name for path in broker.running.data_dir.parent.rglob("*"))
