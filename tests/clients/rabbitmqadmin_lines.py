"""Command lines of `rabbitmqadmin`, every verb with every object, and what they print against a broker.

The lines, and what RabbitMQ prints, are in the record beside this file; with the URLs of a RabbitMQ it is written anew:

    python tests/clients/rabbitmqadmin_lines.py AMQP_URL HTTP_URL
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
from urllib.parse import urlsplit

import pika

DEBIAN = Path("/usr/lib/rabbitmq/lib")
RECORDED = Path(__file__).with_name("rabbitmqadmin.txt")
SECONDS = 30

PROMPT = "$ "
"""Before each command line of the record."""


def lines(recorded: Path = RECORDED) -> list[str]:
    """Return the command lines of a record, `EXPORTED` for a look at the exported file."""
    found = recorded.read_text().splitlines()
    return [line.removeprefix(PROMPT) for line in found if line.startswith(PROMPT)]


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
        for line in lines():
            if line.startswith("list ") and not self._name:
                self._wait()
            if line == "EXPORTED":
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
        shown = []
        for kind, objects in sorted(exported.items()):
            if isinstance(objects, list):
                shown += sorted(f"{kind} {json.dumps(each, sort_keys=True)}" for each in objects)
        return "\n".join(shown) + "\n"

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
    with tempfile.TemporaryDirectory() as directory:
        run = Run(script, amqp_url, http_url, Path(directory))
        try:
            return "".join(f"{PROMPT}{line}\n{printed}" for line, printed in run.printed())
        finally:
            run.close()


if __name__ == "__main__":
    installed = script()
    if installed is None:
        sys.exit("rabbitmqadmin of Debian's rabbitmq-server is not installed")
    RECORDED.write_text(transcript(installed, *(url.rstrip("/") for url in sys.argv[1:3])))
