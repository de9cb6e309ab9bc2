"""Command lines of `rabbitmqadmin-ng`, which comes with Debian's RabbitMQ 4.3 (`make peer-4.3`), and what they print.

The lines, and what RabbitMQ 4.3.6 prints, are in the record beside this file; with the URL of its management API it is
written anew:

    python tests/clients/rabbitmqadmin_ng.py HTTP_URL
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parents[1]))

from clients.rabbitmqadmin_lines import PROMPT, SECONDS, lines, plain
from conformance.peers import PEERS
from samples.certificates import Authority

PEER = PEERS["4.3"]
RECORDED = Path(__file__).with_name("rabbitmqadmin_ng.txt")


def transcript(http_url: str) -> str:
    """Return all lines with what they print against the broker of a URL, and their exit codes if they are not 0."""
    where = urlsplit(http_url)
    words = ("-H", str(where.hostname), "-P", str(where.port), "--non-interactive")
    with tempfile.TemporaryDirectory() as folder:
        # it does not start without an authority, and in the folder of RabbitMQ there is none
        environment = {**os.environ, "SSL_CERT_FILE": str(Authority(Path(folder)).file)}
        command = PEER.inside("rabbitmqadmin", *words)
        return "".join(_printed(command, line, environment) for line in lines(RECORDED))


def _printed(command: list[str], line: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*command, *line.split(" ")],
        env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    code = f"exit code {done.returncode}\n" if done.returncode else ""
    shown = re.sub(r"[A-Za-z0-9+/]{48}", "SALTED", plain(done.stdout + done.stderr, {}))
    return f"{PROMPT}{line}\n{re.sub(' +$', '', shown, flags=re.MULTILINE)}{code}"


if __name__ == "__main__":
    RECORDED.write_text(transcript(sys.argv[1]))
