"""An administrator's requests do not hold the event loop, however large the answers."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from loop.harness import BAR_MS, IS_FULL, RUNS, Run, Step, best_of, publish, size
from loop.inside import Inside

from leveret.broker.administration import BadRequestError
from leveret.broker.amqp.fastpath import unpack_frame
from leveret.broker.http.call import Request
from leveret.broker.http.dispatch import Response, admit, answer
from leveret.broker.management.routes import ROUTER
from leveret.storage.message import Message


def listings() -> Step:
    """List many queues and bindings."""
    inside = Inside()
    queues = inside.queues(size(200_000, 20_000))
    for number in range(size(1_000_000, 50_000)):
        inside.vhost.router.bind("amq.direct", queues[number % len(queues)], f"k{number}")
    kinds = ("queues", "consumers", "bindings", "exchanges")
    return max(inside.job(answered(inside, "GET", f"/api/{kind}")) for kind in kinds)


def answered(inside: Inside, method: str, path: str, body: bytes = b"") -> Iterator[object]:
    """Answer a request to the management API, in steps."""
    admitted = admit(inside.node, ROUTER, Request(method, path))
    assert not isinstance(admitted, Response)
    return answer(inside.node, admitted, body)


def policies() -> Step:
    """Policies come, change and go that concern many queues."""
    inside = Inside()
    inside.queues(size(200_000, 20_000))
    operations = inside.node.administration.policies
    limit = {"pattern": "^q", "definition": {"max-length": 3}}
    octets = {"pattern": "^q.*1", "definition": {"max-length-bytes": 3}}
    return max(
        inside.step(lambda: operations.set(None, "/", "p", limit)),
        inside.step(lambda: operations.set(None, "/", "p", octets)),
        inside.step(lambda: operations.clear(None, "/", "p")),
    )


def byte_limit() -> Step:
    """A queue with very many messages in memory gets a limit in octets."""
    inside = Inside()
    (queue,) = inside.queues(1)
    octets = publish("", "q0", b"x")
    content = octets[unpack_frame(octets, 0)[2] + 8 :]
    queue.inbox += [Message(b"\0q0", content, 1) for _ in range(size(1_000_000, 100_000))]
    queue.run()
    term = {"pattern": "^q", "definition": {"max-length-bytes": 1 << 40}}
    return inside.step(lambda: inside.node.administration.policies.set(None, "/", "p", term))


def imports() -> Step:
    """Ten thousand queues, as many bindings and a hundred policies are compared, imported, then again, and exported."""
    inside = Inside()
    count = size(10_000, 3_000)
    plain = {"durable": True, "auto_delete": False, "arguments": {}}
    octets = json.dumps(
        {
            "queues": [{"name": f"n{number}", "vhost": "/", **plain} for number in range(count)],
            "bindings": [
                {
                    "source": "amq.topic",
                    "vhost": "/",
                    "destination": f"n{number}",
                    "destination_type": "queue",
                    "routing_key": f"k.{number}.#",
                    "arguments": {},
                }
                for number in range(count)
            ],
            "policies": [
                {
                    "name": f"p{number}",
                    "vhost": "/",
                    "pattern": f"^n{number}",
                    "definition": {"max-length": number + 1},
                    "priority": number,
                    "apply-to": "queues",
                }
                for number in range(100)
            ],
        }
    ).encode()
    definitions = inside.node.administration.definitions
    refused = octets.replace(b'"amq.topic"', b'"none"')
    with pytest.raises(BadRequestError, match=f"^{count} entries"):
        definitions.import_file(None, refused)
    step = max(
        inside.job(definitions.importing(None, refused, dry_run=True)),
        inside.job(definitions.importing(None, octets, dry_run=True)),
        *(inside.job(definitions.importing(None, octets)) for _ in range(2)),
    )
    step = max(step, inside.job(definitions.exporting(None)))

    assert count == len(inside.vhost.queues) == inside.vhost.router.binding_count
    assert 100 == inside.vhost.queues["n99"].settings.max_length
    return step


def large_requests() -> Step:
    """Bodies of ten million bytes: messages as text and as base64, and definitions, with and without errors."""
    inside = Inside()
    inside.queues(1)
    payloads = (
        ("string", '"%s"' % ("x" * 9_900_000)),
        ("string", '"%s"' % ("\\n" * 4_900_000)),
        ("base64", '"%s"' % ("eHh4" * 2_400_000)),
        ("string", "[%s{}]" % ("{}," * size(3_200_000, 200_000))),
    )
    publish_path = "/api/exchanges/%2F/amq.default/publish"
    bodies = [
        (
            publish_path,
            f'{{"routing_key":"q0","properties":{{}},"payload_encoding":"{kind}","payload":{payload}}}',
        )
        for kind, payload in payloads
    ]
    queues = json.dumps([{"vhost": "none", "name": f"q{number}"} for number in range(size(250_000, 20_000))])
    bodies.append(("/api/leveret/definitions", f'{{"queues":{queues}}}'))
    bodies.append(("/api/leveret/definitions", f'{{"users":[{"{}," * 3_000_000}{{}}]}}'))

    return max(
        inside.job(answered(inside, "POST", path, body[:10_000_000].encode())) for path, body in bodies
    )


@pytest.mark.timeout(1200 if IS_FULL else 120)
@pytest.mark.parametrize(
    "case", [listings, policies, byte_limit, imports, large_requests], ids=lambda case: case.__name__
)
def test_administration_holds_nobody(case) -> None:
    """Listings and changes keep each step of the loop below the bar."""
    step = best_of(_timed(case) for _ in range(RUNS))

    assert step.milliseconds <= BAR_MS, step


def _timed(case: Callable[[], Step]) -> Run:
    """Run a case, without confirms beside it: there are no clients."""
    began = time.monotonic()
    step = case()
    return Run(step, time.monotonic() - began, None, None)
