"""Command lines of `rabbitmqadmin`, every verb with every object, and what they print against a broker.

What RabbitMQ prints is kept beside this file; with the URLs of a RabbitMQ it is recorded anew:

    python tests/clients/rabbitmqadmin_lines.py AMQP_URL HTTP_URL > tests/clients/rabbitmqadmin.txt
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from urllib.parse import urlsplit

import pika

DEBIAN = Path("/usr/lib/rabbitmq/lib")
RECORDED = Path(__file__).with_name("rabbitmqadmin.txt")
SECONDS = 30

LINES = """
    --version
    declare vhost name=v1
    declare vhost name=v1
    declare user name=ann password=secret tags=management
    declare user name=bob password_hash= tags=
    declare user name=eve tags=
    declare permission vhost=v1 user=guest configure=.* write=.* read=.*
    declare permission vhost=v1 user=ann configure=^a write=.* read=
    declare permission vhost=v1 user=nobody configure=.* write=.* read=.*
    declare permission vhost=v1 user=ann configure=* write=.* read=.*
    -V v1 declare exchange name=x1 type=topic
    -V v1 declare exchange name=x1 type=fanout
    -V v1 declare exchange name=x2 type=headers auto_delete=true durable=false internal=true
    -V v1 declare exchange name=x3 type=direct arguments={"alternate-exchange":"x1"}
    -V v1 declare exchange name=x4 type=x-nonesuch
    -V v1 declare exchange name=amq.x5 type=direct
    -V v1 declare queue name=q1
    -V v1 declare queue name=q1 durable=false
    -V v1 declare queue name=q2 arguments={"x-max-length":2,"x-dead-letter-exchange":"x1"}
    -V v1 declare queue name=q3 queue_type=quorum
    -V v1 declare queue name=q4 arguments={"x-message-ttl":"soon"}
    -V v1 declare queue name=q5 auto_delete=true
    -V v1 declare binding source=x1 destination=q1 routing_key=a.#
    -V v1 declare binding source=x1 destination=q2 routing_key=b arguments={"k":1}
    -V v1 declare binding source=x1 destination=x3 destination_type=exchange routing_key=c
    -V v1 declare binding source=x1 destination=nowhere routing_key=c
    -V v1 declare policy name=p1 pattern=^q definition={"max-length":10} apply-to=queues priority=3
    -V v1 declare policy name=p2 pattern=^q definition={"nonsense":10}
    -V v1 declare policy name=p3 pattern=^q definition=notjson
    -V v1 declare operator_policy name=o1 pattern=^q definition={"max-length":20} apply-to=queues
    -V v1 declare parameter component=unknown name=n value={}
    -V v1 declare vhost_limit vhost=v1 name=max-queues value=100
    -V v1 declare vhost_limit vhost=v1 name=nonsense value=100
    -V v1 publish routing_key=a.b exchange=x1 payload=one
    -V v1 publish routing_key=q2 payload=two properties={"delivery_mode":2,"headers":{"h":[1,"s",true]}}
    -V v1 publish routing_key=q2 payload=two properties={"headers":{"h":null}}
    -V v1 publish routing_key=q2 payload=YQD/ payload_encoding=base64
    -V v1 publish routing_key=nowhere payload=three
    -V v1 publish routing_key=q2 payload=x properties={"priority":"high"}
    -V v1 publish routing_key=q2 exchange=nowhere payload=x
    -V v1 get queue=q1
    -V v1 -f pretty_json get queue=q2 count=5
    -V v1 get queue=q2 ackmode=reject_requeue_true encoding=base64
    -V v1 get queue=q2 ackmode=ack_requeue_false
    -V v1 get queue=nowhere
    WAIT
    list vhosts
    list vhosts name tracing
    list users
    list users name tags
    list permissions
    -f tsv list permissions user vhost configure write read
    -V v1 list exchanges
    -V v1 -f long list exchanges name type durable auto_delete internal arguments policy user_who_performed_action
    -V v1 -f pretty_json list exchanges name arguments
    -V v1 list queues
    -V v1 list queues name durable arguments policy operator_policy effective_policy_definition type state
    -V v1 -f kvp list queues name messages messages_ready messages_unacknowledged message_bytes consumers
    -V v1 -S messages list queues name messages_ready
    -V v1 -S name -R list queues name
    -V v1 -f bash list queues
    -V v1 list bindings
    -V v1 -f long list bindings
    -V v1 -d 3 list queues name backing_queue_status.len backing_queue_status.mode
    list connections
    list connections user vhost state channels protocol auth_mechanism
    list channels user vhost number consumer_count prefetch_count confirm transactional
    list consumers consumer_tag queue.name ack_required exclusive prefetch_count active
    list nodes name type running
    list nodes
    list parameters
    list policies
    -V v1 list operator_policies
    list vhost_limits
    show overview
    show overview object_totals queue_totals
    list nonsense
    list queues nonsense
    -u ann -p secret list queues
    -u ann -p secret list users
    -u ann -p wrong list queues
    -V v1 export FILE
    -V v1 import FILE
    -V nowhere list queues
    EXPORTED
    close connection name=CONNECTION
    close connection name=nobody
    -V v1 purge queue name=q2
    -V v1 purge queue name=nowhere
    -V v1 delete binding source=x1 destination_type=queue destination=q1 properties_key=a.%23
    -V v1 delete binding source=x1 destination_type=queue destination=q1 properties_key=a.%23
    -V v1 delete queue name=q1
    -V v1 delete queue name=nowhere
    -V v1 delete exchange name=x2
    -V v1 delete exchange name=amq.topic
    -V v1 delete policy name=p1
    -V v1 delete policy name=nowhere
    -V v1 delete operator_policy name=o1
    -V v1 delete parameter component=unknown name=n
    -V v1 delete vhost_limit vhost=v1 name=max-queues
    delete permission vhost=v1 user=ann
    delete permission vhost=v1 user=nobody
    delete user name=ann
    delete user name=bob
    delete user name=nobody
    delete vhost name=v1
    delete vhost name=v1
"""


def script() -> Path | None:
    """Return the newest `rabbitmqadmin` that Debian's package installed; None without it."""
    found = sorted(DEBIAN.glob("*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"))
    return found[-1] if found else None


class Run:
    """The command lines, one after the other, against a broker with one client.

    Args:
        script: `rabbitmqadmin`.
        amqp_url: for the client; ends after the port.
        http_url: of the management API, without a path.
        directory: for the exported file.

    """

    def __init__(self, script: Path, amqp_url: str, http_url: str, directory: Path) -> None:
        self._script, self._http_url = script, http_url
        self._file = directory / "exported.json"
        self._connection = pika.BlockingConnection(pika.URLParameters(f"{amqp_url}/%2F"))
        self._name = ""

    def printed(self) -> Iterator[tuple[str, str]]:
        """Yield each line with all that it printed, and its exit code if it is not 0."""
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=7)
        channel.confirm_delivery()
        queue = channel.queue_declare("listed", exclusive=True).method.queue
        channel.basic_consume(queue, lambda *_: None, consumer_tag="listener")
        for line in dedent(LINES).strip().splitlines():
            if line == "WAIT":
                self._wait()
            elif line == "EXPORTED":
                yield line, self._exported()
            else:
                yield line, plain(self._run(line), self._names())

    def close(self) -> None:
        """Close the connection, if `close connection` did not."""
        if self._connection.is_open:
            with contextlib.suppress(pika.exceptions.AMQPError):  # closed by the command
                self._connection.close()

    def _names(self) -> dict[str, str]:
        return (
            {self._name: "CONNECTION", str(self._file): "FILE"} if self._name else {str(self._file): "FILE"}
        )

    def _wait(self) -> None:
        """Wait until the figures that the lists show have come to the statistics."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            self._connection.process_data_events(0.2)
            [channel] = self._get("channels") or [{}]
            queues = {each["name"]: each.get("messages_ready") for each in self._get("queues/v1")}
            vhosts = {each["name"]: each.get("messages") for each in self._get("vhosts")}
            if channel.get("consumer_count") == 1 and [1, 1, 2] == [queues["q1"], queues["q2"], vhosts["v1"]]:
                self._name = channel["connection_details"]["name"]
                return
        raise TimeoutError(f"no statistics after {SECONDS} s: {channel}, {queues}")

    def _get(self, path: str) -> list[dict[str, object]]:
        login = b64encode(b"guest:guest").decode()
        request = urllib.request.Request(
            f"{self._http_url}/api/{path}", headers={"authorization": f"Basic {login}"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found: list[dict[str, object]] = json.load(answer)
        return found

    def _exported(self) -> str:
        if not self._file.exists():
            return "not there\n"
        exported = json.loads(self._file.read_text())
        lines = []
        for kind, objects in sorted(exported.items()):
            if isinstance(objects, list):
                lines += sorted(f"{kind} {json.dumps(each, sort_keys=True)}" for each in objects)
        return "\n".join(lines) + "\n"

    def _run(self, line: str) -> str:
        words = [
            word.replace("CONNECTION", self._name).replace("FILE", str(self._file))
            for word in line.split(" ")
        ]
        where = urlsplit(self._http_url)
        done = subprocess.run(
            [
                sys.executable, str(self._script),
                "-H", str(where.hostname), "-P", str(where.port), *words,
            ],
            capture_output=True, text=True, timeout=SECONDS, check=False,
            env={"HOME": str(self._file.parent), "PATH": ""},
        )  # fmt: skip
        code = f"exit code {done.returncode}\n" if done.returncode else ""
        return done.stdout + done.stderr.rpartition("Exception: ")[2] + code


def plain(text: str, names: dict[str, str]) -> str:
    """Return what was printed without what differs between two runs: versions, nodes, salts, widths, memory."""
    for name, word in names.items():
        text = text.replace(name, word)
    text = re.sub(r"\b\w+@[\w-]+", "NODE", text)
    text = re.sub(r"\b[34]\.\d+\.\d+\b", "VERSION", text)
    text = re.sub(r"(sha256 \| )[\w+/=]{48}", r"\1SALTED", text)
    text = re.sub(r"^(\| NODE +\| disc +\| )\d+", r"\1MEMORY", text, flags=re.MULTILINE)
    return re.sub(r"-{2,}", "--", re.sub(r" {2,}", " ", text))


def transcript(script: Path, amqp_url: str, http_url: str) -> str:
    """Return all lines with what they printed."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(script, amqp_url, http_url, Path(directory))
        try:
            return "".join(f"$ {line}\n{printed}" for line, printed in run.printed())
        finally:
            run.close()


if __name__ == "__main__":
    installed = script()
    if installed is None:
        sys.exit("rabbitmqadmin of Debian's rabbitmq-server is not installed")
    sys.stdout.write(transcript(installed, *(url.rstrip("/") for url in sys.argv[1:3])))
