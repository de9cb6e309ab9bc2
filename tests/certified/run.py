"""Presents certificates of clients to a real RabbitMQ and to this project's broker, and compares (``make campaign NAME=certificates``).

For each: whether TLS 1.2 and 1.3 accept it, and whom EXTERNAL takes the client for, by each part of the certificate that
may name a user. `--write` records both in `table.txt`, which `test_certified.py` compares with ours.

Exit code 0: every difference is listed in explained.py. 1: some is not, or one that is listed is none any more.
2: a broker did not start.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from certified.explained import EXPLAINED  # noqa: E402
from certified.outcomes import MODES, VERSIONS, Target, accepts, addresses, user_of  # noqa: E402
from certified.presented import DEPTH, Collection, Presented  # noqa: E402
from certified.table import TABLE, Rows, written  # noqa: E402
from conformance.brokers import SetUp, StartError, free_port, start_ours, start_rabbitmq  # noqa: E402
from samples.certificates import Issued  # noqa: E402

ANSWERED = "distinguished name"


def settings_of(collection: Collection, server: Issued) -> dict[str, object]:
    """Return the keys of TLS, which are the same for both brokers."""
    return {
        "ssl_options.certfile": server.certfile,
        "ssl_options.keyfile": server.keyfile,
        "ssl_options.cacertfile": collection.ca.file,
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
        "ssl_options.depth": DEPTH,
    }


def our_words(collection: Collection, server: Issued, mode: str, port: int = 0) -> tuple[str, ...]:
    """Return the settings of our broker for a part of the certificate."""
    source, kind = MODES[mode]
    keys = {
        **settings_of(collection, server),
        "listeners.ssl.default": f"127.0.0.1:{port}",
        "auth_mechanisms.1": "EXTERNAL",
        "auth_mechanisms.2": "PLAIN",
        "auth.failure_delay": "0",
        "auth.max_failures": "infinity",
        "ssl_cert_login_from": source,
        **({"ssl_cert_login_san_type": kind} if kind else {}),
    }
    return tuple(f"{key}={value}" for key, value in keys.items())


@contextmanager
def rabbitmq(collection: Collection, server: Issued) -> Iterator[tuple[Target, Callable[[str], None]]]:
    """A RabbitMQ; yields it, and what makes it take another part of the certificate."""
    port = free_port()
    keys = settings_of(collection, server)
    lines = [f"{key} = {value}" for key, value in keys.items()]
    lines += [
        f"listeners.ssl.default = 127.0.0.1:{port}",
        "auth_mechanisms.1 = EXTERNAL",
        "auth_mechanisms.2 = PLAIN",
    ]
    lines += ["ssl_options.versions.1 = tlsv1.3", "ssl_options.versions.2 = tlsv1.2"]
    broker = start_rabbitmq(SetUp("certified", plugins="rabbitmq_auth_mechanism_ssl", lines=tuple(lines)))

    def choose(mode: str) -> None:
        source, kind = MODES[mode]
        for key, value in (("ssl_cert_login_from", source), ("ssl_cert_login_san_type", kind or "dns")):
            broker.control("eval", f"application:set_env(rabbit, {key}, {value}).")

    try:
        log = broker.home / "log" / f"{broker.environment['RABBITMQ_NODENAME']}.log"
        yield Target(("127.0.0.1", port), lambda: log.read_text(errors="replace"), addresses()), choose
    finally:
        broker.stop()


def theirs(collection: Collection, server: Issued, presented: list[Presented]) -> Rows:
    """Return what RabbitMQ does."""
    rows: Rows = {each.name: {} for each in presented}
    with rabbitmq(collection, server) as (target, choose):
        for mode in MODES:
            choose(mode)
            for each in presented:
                fill(rows[each.name], target, each, mode)
    return rows


def ours(
    collection: Collection, server: Issued, presented: list[Presented], modes: Iterable[str] = MODES
) -> Rows:
    rows: Rows = {each.name: {} for each in presented}
    for mode in modes:
        port = free_port()
        broker = start_ours(SetUp("certified", ours=our_words(collection, server, mode, port)))
        try:
            target = Target(("127.0.0.1", port), broker.log, addresses())
            for each in presented:
                fill(rows[each.name], target, each, mode)
        finally:
            broker.stop()
    return rows


def fill(row: dict[str, str], target: Target, presented: Presented, mode: str) -> None:
    """Add what a broker does with a certificate; who is refused by TLS once is not asked again."""
    if mode == ANSWERED:
        for version in VERSIONS:
            row[f"TLS {version}"] = "yes" if accepts(target, presented, version) else "no"
    if row.get("TLS 1.2", "yes") == "yes":
        row[mode] = user_of(target, presented)


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"record the outcomes in {TABLE.name}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name, "clients")).mkdir()
        collection = Collection(folder)
        server = collection.ca.server()
        presented = list(collection.all())
        try:
            there = theirs(collection, server, presented)
            here = ours(collection, server, presented)
        except StartError as error:
            print(error, file=sys.stderr)
            return 2
    if given.write:
        TABLE.write_text(written(here, there), encoding="utf-8")
    return report(here, there)


def report(here: Rows, there: Rows) -> int:
    """Print the differences and the counts; returns the exit code."""
    used, unexplained, asked = set(), 0, 0
    for name, row in here.items():
        for column in sorted(row.keys() | there[name].keys()):
            one, other = row.get(column, "-"), there[name].get(column, "-")
            asked += 1
            if one == other or "-" in {
                one,
                other,
            }:  # one of them has refused the handshake, which has its own line
                continue
            key = next(
                (key for key in ((name, column), (name, "*"), ("*", column)) if key in EXPLAINED), None
            )
            used.add(key)
            unexplained += key is None
            print(f"{name}, {column}: {one[:200]} here, {other[:200]} there\n    {EXPLAINED.get(key, '?')}")
    print(f"{len(here)} certificates, {asked} outcomes, {unexplained} different without a reason")
    stale = EXPLAINED.keys() - used
    for key in sorted(stale):
        print(f"nothing differs for: {key}")
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main())
