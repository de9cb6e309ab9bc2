"""Runs Ansible's modules for RabbitMQ on this project's broker, twice each (``make campaign NAME=ansible``).

The second run of the same task must change nothing: Ansible then has read what it wrote. Package and collection come
from the package index, into `build/ansible`; `--brokers ours,rabbitmq` runs them on a real RabbitMQ, too.

Exit code 0: all as expected on ours. 1: some were not. 2: a broker did not start.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from conformance.brokers import SetUp, StartError, free_port, start_ours, start_rabbitmq  # noqa: E402
from playbooks.cases import CASES, Case  # noqa: E402
from processes.commands import execute  # noqa: E402
from services.programs import installed  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "ansible"
PACKAGES = ("ansible==12.3.0", "requests", "pika")
PLAY_SECONDS = 1800


def main() -> int:
    """Play all cases, and print what each run of a module said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of cases, by their beginnings; all")
    parser.add_argument("--brokers", default="ours", help="ours, rabbitmq or both, with a comma")
    given = parser.parse_args()
    cases = [case for case in CASES if not given.names or case.name.startswith(tuple(given.names))]
    bad = 0
    try:
        program = installed(FOLDER, "ansible-playbook", *PACKAGES)
        for name in given.brokers.split(","):
            with BROKERS[name]() as (environment, variables):
                results = play(program, cases, environment, variables)
            failed = report(name, cases, results)
            bad += failed if name == "ours" else 0
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if bad else 0


@contextmanager
def ours() -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Run this project's broker; the environment for its commands, and the variables of the playbook."""
    port = free_port()
    broker = start_ours(SetUp("ansible", ours=("prometheus.enabled=false", f"management.tcp.port={port}")))
    path = os.pathsep.join(
        (str(ROOT / "docker" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
    )
    try:
        yield (
            {**os.environ, "PATH": path, "LEVERET_DATA_DIR": str(broker.home / "data")},
            {"port": port, "amqp_port": broker.address[1], "node": "rabbit"},
        )
    finally:
        broker.stop()


@contextmanager
def rabbitmq() -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Run a RabbitMQ with the management plugin, as `ours`."""
    port = free_port()
    lines = (f"management.tcp.port = {port}", "management.tcp.ip = 127.0.0.1")
    broker = start_rabbitmq(SetUp("ansible", plugins="rabbitmq_management", lines=lines))
    path = f"/usr/lib/rabbitmq/bin{os.pathsep}{os.environ['PATH']}"
    try:
        yield (
            {**broker.environment, "PATH": path},
            {"port": port, "amqp_port": broker.address[1], "node": broker.environment["RABBITMQ_NODENAME"]},
        )
    finally:
        broker.stop()


BROKERS = {"ours": ours, "rabbitmq": rabbitmq}


def tasks(case: Case) -> list[dict[str, Any]]:
    """Return the tasks of a case: present twice, and absent twice if it can be removed."""
    arguments = dict(case.present)
    if case.module in {"user", "user_limits", "vhost", "vhost_limits", "policy", "parameter", "global_parameter",
                       "feature_flag", "upgrade"} and "login_host" not in arguments:  # fmt: skip
        arguments["node"] = "{{ node }}"
    both = [arguments] if case.absent is None else [arguments, {**arguments, **case.absent}]
    module = f"community.rabbitmq.rabbitmq_{case.module}"
    return [{"name": case.name, module: words, "ignore_errors": True} for words in both for _ in range(2)]


def play(
    program: Path, cases: list[Case], environment: dict[str, str], variables: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run the tasks of all cases as one playbook; returns the result of each task."""
    playbook = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": {**variables, "ansible_python_interpreter": str(program.with_name("python"))},
            "tasks": [task for case in cases for task in tasks(case)],
        }
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "playbook.json")
        path.write_text(json.dumps(playbook))
        done = execute(
            [str(program), "-i", "localhost,", str(path)],
            cwd=directory,
            timeout=PLAY_SECONDS,
            env={**environment, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_HOME": directory},
        )
    try:
        (played,) = json.loads(done.stdout)["plays"]
    except ValueError:
        sys.exit(done.stdout + done.stderr)
    return [task["hosts"]["localhost"] for task in played["tasks"]]


def report(name: str, cases: list[Case], results: list[dict[str, Any]]) -> int:
    """Print the results of each case, and a sum; returns how many cases were not as expected."""
    left = iter(results)
    bad = differing = 0
    for case in cases:
        found = [next(left) for _ in tasks(case)]
        words = " ".join(said(each) for each in found)
        expected = case.ours if name == "ours" and case.ours else case.expected
        bad += words != expected
        differing += words != case.expected
        print(f"{case.name}: {words}")
        if words != expected:
            print(f"    expected: {expected}")
        elif words != case.expected:
            print(f"    RabbitMQ: {case.expected}; {case.reason}")
        for text in {" ".join(str(each["msg"]).split()) for each in found if each.get("failed")}:
            print(f"    {text[:300]}")
    print(
        f"{name}: {len(cases) - differing} of {len(cases)} as on RabbitMQ, {bad} without a reason", flush=True
    )
    return bad


def said(result: dict[str, Any]) -> str:
    if result.get("failed"):
        return "failed"
    return "changed" if result.get("changed") else "ok"


if __name__ == "__main__":
    sys.exit(main())
