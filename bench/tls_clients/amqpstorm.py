"""Functional tests of amqpstorm over TLS, as released, on Leveret and beside it on RabbitMQ; nothing is changed.

They have port 5671 in their code, so that they run in a network of their own. Both brokers demand a certificate of
their CA, and passwords; the tests have both. Run inside that network with the name of a broker, the directory of the
unpacked archive, that of the certificates, and a path for the report.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from samples.certificates import Authority

from bench import brokers
from bench.management_clients import amqpstorm
from bench.management_clients.inside import ALONE, LEVERET, PLUGINS, RABBITMQ

NAME = f"amqpstorm {amqpstorm.VERSION}"
TESTS = "amqpstorm/tests/functional/ssl"
HERE = Path(__file__).resolve().parents[2]
LIMIT = 600
"""Maximum seconds of the tests on one broker."""


def differences(folder: Path) -> tuple[list[str], str]:
    """Run the tests on both brokers; returns what RabbitMQ passes and Leveret does not, and a line about all.

    Raises `MissingError` if amqpstorm cannot be fetched.
    """
    copy = amqpstorm.build(folder)
    found = {}
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as name:
        certificates = Path(name)
        ca = Authority(certificates)
        ca.server()
        ca.issue("client")
        for broker in ("leveret", "rabbitmq"):
            report = folder / f"{broker}.xml"
            report.unlink(missing_ok=True)
            words = [sys.executable, "-m", "bench.tls_clients.amqpstorm", broker, copy, certificates, report]
            with (folder / f"{broker}.log").open("wb") as log:
                subprocess.run(
                    [*ALONE, *map(str, words)], cwd=HERE, stdout=log, stderr=log, timeout=LIMIT, check=False
                )
            if not report.exists():
                text = (folder / f"{broker}.log").read_text(errors="replace")
                raise brokers.BrokerError(f"no report of {NAME} on {broker}: {text[-500:]}")
            found[broker] = amqpstorm.results(report)
    ours, theirs = found["leveret"], found["rabbitmq"]
    passed = [sum(result == "passed" for result in each.values()) for each in (ours, theirs)]
    bad = [
        f"{test}: {ours.get(test, 'missing')}" for test, result in theirs.items() if result != ours.get(test)
    ]
    if not passed[1]:
        bad.append("no test has passed on RabbitMQ, so that nothing is shown")
    return bad, f"Leveret {passed[0]}, RabbitMQ {passed[1]} of {len(theirs)} passed"


def main() -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    broker, copy, certificates, report = sys.argv[1], *map(Path, sys.argv[2:])
    keys = {
        "listeners.ssl.default": "127.0.0.1:5671",
        "ssl_options.certfile": certificates / "server.pem",
        "ssl_options.keyfile": certificates / "server.key",
        "ssl_options.cacertfile": certificates / "ca.pem",
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    variables = {
        "AMQP_CAFILE": keys["ssl_options.cacertfile"],
        "AMQP_CERTFILE": certificates / "client.pem",
        "AMQP_KEYFILE": certificates / "client.key",
        "AMQP_SSL_HOST": "localhost",
        "AMQP_SSL_URI": "amqps://guest:guest@localhost:5671/%2F",
    }
    with tempfile.TemporaryDirectory(prefix="leveret-clients-", ignore_cleanup_errors=True) as scratch:
        running = brokers.start(
            broker,
            Path(scratch),
            [*LEVERET, *(f"{key}={value}" for key, value in keys.items())],
            rabbitmq=[*RABBITMQ, *(f"{key} = {value}" for key, value in keys.items())],
            plugins=PLUGINS,
        )
        try:
            python = copy.with_name("amqpstorm-env") / "bin" / "python"
            command = [str(python), "-m", "pytest", "-c", "pyproject.toml", f"--junitxml={report}", TESTS]
            environment = (
                os.environ | amqpstorm.VARIABLES | {key: str(value) for key, value in variables.items()}
            )
            return subprocess.run(command, cwd=copy, env=environment, check=False).returncode
        finally:
            running.stop()


if __name__ == "__main__":
    sys.exit(main())
