"""Clients in Java, JavaScript and Go over TLS: by password, by certificate, and as strangers; amqpstorm's own tests.

    make bench NAME=tls_clients                       # all
    make bench NAME=tls_clients ARGS="amqplib"

Each is fetched from the registry of its language at a fixed version, into `build/tls-clients`, and left out with the
reason if that fails. A client publishes with confirms and consumes what it has published, and must be refused, or leave
by itself, where certificates do not fit. The functional tests of amqpstorm over TLS run as they are, on RabbitMQ, too.
Exit code 1: something ended otherwise.
"""

import argparse
import contextlib
import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from samples.certificates import Authority, Issued

from bench import brokers, maven
from bench.management_clients.tools import MissingError, run
from bench.tls_clients import amqpstorm

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "tls-clients"
JAVA = ("com.rabbitmq", "amqp-client", "5.24.0")
AMQPLIB = "0.10.9"
AMQP091_GO = "v1.10.0"
USER = "alice"
PASSWORD = b"changeit"
"""Of key stores for Java, which have no others."""
LIMIT = 60
"""Maximum seconds of a round trip."""
REASON = re.compile(r"Error|Exception|failed")


@dataclasses.dataclass(frozen=True)
class Case:
    """A client's way to log in.

    Attributes:
        name: what it is.
        authority: the CA that the client trusts.
        identity: the certificate of the client; None for none.
        is_demanded: whether the broker demands a certificate of its CA, and takes no passwords.
        is_taken: whether the round trip must succeed.

    """

    name: str
    authority: Authority
    identity: Issued | None
    is_demanded: bool
    is_taken: bool


@dataclasses.dataclass(frozen=True)
class Client:
    """A client.

    Attributes:
        name: its name and version.
        build: makes it ready in a directory, and returns the words that run it; MissingError if that cannot be.
        takes_store: whether it reads certificate and key from one file in PKCS #12, not from two in PEM.

    """

    name: str
    build: Callable[[Path], Sequence[str]]
    takes_store: bool = False


def java(folder: Path) -> list[str]:
    """Fetch RabbitMQ's Java client."""
    try:
        libraries = maven.fetched(*JAVA, folder)
    except maven.MavenError as error:
        raise MissingError(str(error)) from error
    return ["java", "-cp", f"{libraries}/*", str(HERE / "Talk.java")]


def amqplib(folder: Path) -> list[str]:
    """Fetch amqplib with npm."""
    run("npm", "install", "--silent", "--no-audit", "--no-fund", f"amqplib@{AMQPLIB}", cwd=folder)
    copy = folder / "talk.mjs"  # which finds the package beside itself
    copy.write_bytes((HERE / "talk.mjs").read_bytes())
    return ["node", str(copy)]


def amqp091_go(folder: Path) -> list[str]:
    """Fetch amqp091-go, and compile the program that uses it."""
    (folder / "talk.go").write_bytes((HERE / "talk.go").read_bytes())
    (folder / "go.mod").write_text("module talk\n\ngo 1.20\n")
    run("go", "get", f"github.com/rabbitmq/amqp091-go@{AMQP091_GO}", cwd=folder)
    run("go", "build", "-o", "talk", ".", cwd=folder)
    return [str(folder / "talk")]


CLIENTS = {
    "java": Client(f"amqp-client {JAVA[2]}", java, takes_store=True),
    "amqplib": Client(f"amqplib {AMQPLIB}", amqplib),
    "amqp091-go": Client(f"amqp091-go {AMQP091_GO}", amqp091_go),
}


def cases(folder: Path) -> tuple[Authority, list[Case]]:
    """Make the certificates; return the CA of the brokers, and the cases."""
    ca, stranger = Authority(folder), Authority(folder, "stranger")
    own = ca.issue(USER)
    foreign = stranger.issue(f"{USER}-foreign", subject=own.certificate.subject)
    expired = ca.issue(f"{USER}-expired", subject=own.certificate.subject, days=-1)
    return ca, [
        Case("password", ca, None, is_demanded=False, is_taken=True),
        Case("password, another CA trusted", stranger, None, is_demanded=False, is_taken=False),
        Case("certificate", ca, own, is_demanded=True, is_taken=True),
        Case("certificate, another CA trusted", stranger, own, is_demanded=True, is_taken=False),
        Case("no certificate", ca, None, is_demanded=True, is_taken=False),
        Case("certificate of another CA", ca, foreign, is_demanded=True, is_taken=False),
        Case("expired certificate", ca, expired, is_demanded=True, is_taken=False),
    ]


@contextlib.contextmanager
def serving(folder: Path, ca: Authority, *, is_demanded: bool) -> Iterator[int]:
    """Run a broker; yields its port with TLS."""
    folder.mkdir()
    server, port = ca.server(), brokers.free_port()
    settings = [
        f"listeners.ssl.default=127.0.0.1:{port}", f"ssl_options.certfile={server.certfile}",
        f"ssl_options.keyfile={server.keyfile}", f"ssl_options.cacertfile={ca.file}",
    ]  # fmt: skip
    if is_demanded:
        settings += [
            "ssl_options.verify=verify_peer", "ssl_options.fail_if_no_peer_cert=true", "auth_mechanisms.1=EXTERNAL",
            "ssl_cert_login_from=common_name", f"default_users.{USER}.password=unused",
        ]  # fmt: skip
    broker = brokers.start("leveret", folder, settings)
    try:
        yield port
    finally:
        broker.stop()


def files(identity: Issued | None, *, takes_store: bool) -> list[str]:
    """Return the words by which a client learns its certificate."""
    if identity is None:
        return [""] if takes_store else ["", ""]
    if not takes_store:
        return [str(identity.certfile), str(identity.keyfile)]
    store = identity.certfile.with_suffix(".p12")
    encryption = serialization.BestAvailableEncryption(PASSWORD)
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"own", identity.key, identity.certificate, None, encryption)
    )
    return [str(store)]


def is_taken(words: Sequence[str]) -> tuple[bool, str]:
    """Return whether the round trip of a client has succeeded, and the last thing that it has printed."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return False, f"nothing after {LIMIT} s"
    if done.returncode == 0 and done.stdout.splitlines()[-1:] == ["done"]:
        return True, ""
    lines = done.stderr.splitlines() or ["nothing"]
    return False, next((line for line in lines if REASON.search(line)), lines[-1])


def tests_of_amqpstorm() -> int:
    """Run them, print what came of it, and return how many end otherwise than with RabbitMQ."""
    place = FOLDER / "amqpstorm"
    place.mkdir(parents=True, exist_ok=True)
    try:
        bad, text = amqpstorm.differences(place)
    except (MissingError, brokers.BrokerError) as error:
        print(f"{amqpstorm.NAME}: left out, because {error}", flush=True)
        return int(isinstance(error, brokers.BrokerError))
    print(f"{amqpstorm.NAME}, its functional tests over TLS: {text}", flush=True)
    for line in bad:
        print(f"  {line} (WRONG)", flush=True)
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = (*CLIENTS, "amqpstorm")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(names)}")
    options = parser.parse_args()
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"no client called {', '.join(unknown)}")
    wrong = tests_of_amqpstorm() if not options.names or "amqpstorm" in options.names else 0
    if options.names == ["amqpstorm"]:
        return 1 if wrong else 0
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ca, every = cases(folder)
        with contextlib.ExitStack() as stack:
            ports = {
                is_demanded: stack.enter_context(
                    serving(folder / f"broker-{is_demanded}", ca, is_demanded=is_demanded)
                )
                for is_demanded in (False, True)
            }
            for key, client in CLIENTS.items():
                if options.names and key not in options.names:
                    continue
                place = FOLDER / key
                place.mkdir(parents=True, exist_ok=True)
                try:
                    command = client.build(place)
                except MissingError as error:
                    print(f"{client.name}: left out, because {error}", flush=True)
                    continue
                for case in every:
                    words = [
                        *command, "localhost", str(ports[case.is_demanded]), str(case.authority.file),
                        *files(case.identity, takes_store=client.takes_store),
                    ]  # fmt: skip
                    taken, text = is_taken(words)
                    is_right = taken is case.is_taken and not text.startswith("nothing after")
                    wrong += not is_right
                    verdict = "taken" if taken else f"refused: {text[:160]}"
                    print(
                        f"{client.name}, {case.name}: {verdict}{'' if is_right else ' (WRONG)'}", flush=True
                    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
