"""Requests that Schemathesis makes from the description of the management API: `make campaign NAME=schema N=20000`.

Valid and invalid parameters, bodies and methods for every operation, as an administrator. No answer may be an error of
the broker, each must be as `/api/openapi.json` describes it, no traceback may be logged, and no step of the loop take
50 ms. Schemathesis has an environment of its own in `build/schemathesis`, because nothing else needs it.

Left out are what stops the broker, writes files where it is told to, and delays the answer to a wrong login. Health
checks answer 503 if something is wrong.

Exit code 0: nothing was found. 1: something was. 2: Schemathesis cannot be installed, or the broker does not start.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from processes.running import SLOW_STEP, leash  # noqa: E402
from services.programs import installed  # noqa: E402

from bench import brokers  # noqa: E402
from leveret.broker.management.routes import ROUTES  # noqa: E402

VERSION = "4.32.5"
FOLDER = ROOT / "build" / "schemathesis"
CASES = 20_000
FIXED = 40
"""Cases for each operation, about, that are the same in each run: bounds, missing keys, other methods."""
LEFT_OUT = ("/leveret/stop", "/leveret/backup", "/login")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
NAMES = {
    "vhost": ("/", "v"),
    "user": ("ann", "bob"),
    "queue": ("q", "r"),
    "exchange": ("amq.topic", "e"),
    "source": ("amq.topic", "e"),
    "props": ("~",),
    "policy": ("p",),
    "component": ("vhost-limits", "operator_policy", "policy"),
    "name": ("limits", "n", "quorum_queue"),
    "limit": ("max-queues", "max-connections", "max-channels"),
    "unit": ("days", "weeks"),
    "sort": ("name", "message_stats.publish", "no.key"),
    "page": (1, 2),
    "page_size": (1, 500),
    "lengths_age": (60, 600),
    "lengths_incr": (5, 60),
    "msg_rates_age": (60, 600),
    "msg_rates_incr": (5, 60),
}
"""Names in paths and values in queries, of which half are these: else there would hardly be an object twice."""
HEALTH = """
[[operations]]
include-path-regex = "^/health"
checks.not_a_server_error.expected-statuses = ["2XX", "4XX", "503"]
"""
STEP = "50ms"
LIMIT = 3600.0
"""Maximum seconds."""
GENERATED = re.compile(r"(\d+) generated")
CHANGED = re.compile(r": (\d{3})$", re.MULTILINE)
BAD = re.compile(rf"Traceback|unexpected error|internal error|{SLOW_STEP}")


def settings() -> str:
    lists = [f"[dictionaries.{name}]\nvalues = {json.dumps(values)}\n" for name, values in NAMES.items()]
    uses = [f'"{name}" = {{ dictionary = "{name}", probability = 0.5 }}\n' for name in NAMES]
    return "".join([*lists, "[parameters]\n", *uses, HEALTH])


def words(port: int, file: Path, examples: int, seed: int) -> list[str]:
    """Return the arguments of Schemathesis.

    Args:
        port: port of the management API.
        file: its file of settings.
        examples: random cases for each operation.
        seed: of all choices.

    """
    found = ["--config-file", str(file), "run", f"http://127.0.0.1:{port}/api/openapi.json"]
    found += ["--auth", "guest:guest", "--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)]
    found += [word for path in LEFT_OUT for word in ("--exclude-path", path)]
    found += ["--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"]
    return [*found, "--suppress-health-check", "all", "--warnings", "off", "--request-timeout", "60"]


def problems(log: str) -> list[str]:
    return [line for line in log.splitlines() if BAD.search(line)]


def run(program: Path, cases: int, seed: int) -> tuple[int, int, list[str]]:
    """Run so many cases against a broker; returns the exit code, the number of cases, and the log's problems.

    Raises:
        BrokerError: the broker does not start.

    """
    operations = sum(len(route.operations) for route in ROUTES)
    examples = max(1, cases // operations - FIXED)
    with tempfile.TemporaryDirectory(prefix="leveret-schema-", ignore_cleanup_errors=True) as scratch:
        port = brokers.free_port()
        given = ("prometheus.enabled=false", f"management.tcp.port={port}", f"debug.slow_step={STEP}")
        broker = brokers.start("leveret", Path(scratch), given)
        try:
            file = Path(scratch, "settings.toml")
            file.write_text(settings())
            command = [*leash(), str(program), *words(port, file, examples, seed)]
            done = subprocess.run(
                command, cwd=scratch, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False
            )
        finally:
            broker.stop()
        print(done.stdout)
        log = broker.log.read_text(errors="replace")
        statuses = Counter(CHANGED.findall(log))
        print("changes by status:", ", ".join(f"{each} {statuses[each]:,}" for each in sorted(statuses)))
        generated = GENERATED.search(done.stdout)
        return done.returncode, int(generated[1]) if generated else 0, problems(log)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="about how many")
    parser.add_argument("--seed", type=int, default=1, help="of all choices")
    options = parser.parse_args(arguments)
    try:
        program = installed(FOLDER / VERSION, "schemathesis", f"schemathesis=={VERSION}")
        code, cases, found = run(program, options.cases, options.seed)
    except (brokers.BrokerError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    for line in found[:40]:
        print("PROBLEM:", line)
    print(f"schema: {cases:,} cases, exit code {code} of Schemathesis, {len(found)} problems in the log")
    return 1 if code or found or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
