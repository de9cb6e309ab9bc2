"""The test suites of rabbit-hole (Go) and rabbitmqadmin-ng (Rust), as released; nothing is changed."""

import itertools
import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from bench.management_clients.tools import run

RABBIT_HOLE = ("github.com/michaelklishin/rabbit-hole/v3", "v3.2.0")
RABBITMQADMIN = ("rabbitmqadmin", "2.35.0")
PASSED, SKIPPED = "passed", "skipped"
EXPLAINED = dict.fromkeys(
    (
        "exchange_federation_tests::",
        "queue_federation_tests::",
        "federation_link_tests::",
        "federation_upstream_uri_modification_tests::",
    ),
    "There is no federation.",
)
"""Reasons why tests of rabbitmqadmin fail, by the beginnings of their names."""
TEST = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. .*?(ok|FAILED|ignored)$", re.MULTILINE)
"""A line of Rust's test runner."""


def rabbit_hole(folder: Path) -> Path:
    """Fetch and build rabbit-hole's specs with `go`, and return the directory that they run in."""
    copy = folder / f"rabbit-hole-{RABBIT_HOLE[1]}"
    if not (copy / "specs").exists():
        found = json.loads(run("go", "mod", "download", "-json", "@".join(RABBIT_HOLE), cwd=folder))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(found["Dir"], copy, copy_function=shutil.copyfile)
        run("go", "test", "-mod=mod", "-c", "-o", "specs", ".", cwd=copy)
    return copy


def rabbit_hole_command(copy: Path, report: Path) -> list[str]:
    """Return the command that runs the specs, and writes their results."""
    words = ["./specs", f"-ginkgo.junit-report={report}", "-test.timeout=600s"]
    return ["env", "-C", str(copy), "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=5s", *words]


def rabbit_hole_results(report: Path) -> dict[str, str]:
    """Return the results of a run by spec: passed, failed or skipped; specs of the same name are numbered."""
    results: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kind, _, name = case.attrib["name"].partition(" ")
        if kind == "[It]":  # others are steps around the specs
            numbered = (f"{name} ({count})" if count > 1 else name for count in itertools.count(1))
            results[next(each for each in numbered if each not in results)] = case.attrib["status"]
    return results


def rabbitmqadmin(folder: Path) -> Path:
    """Fetch and build rabbitmqadmin's integration tests with `cargo`, and return the directory that they run in."""
    name, version = RABBITMQADMIN
    copy = folder / f"{name}-{version}"
    if not (copy / "integration").exists():
        wanting = folder / "wanting"
        (wanting / "src").mkdir(parents=True, exist_ok=True)
        (wanting / "src" / "lib.rs").touch()
        (wanting / "Cargo.toml").write_text(
            f'[package]\nname = "wanting"\nedition = "2024"\n[dependencies]\n{name} = "={version}"\n[workspace]\n'
        )
        packages = json.loads(run("cargo", "metadata", "--format-version=1", cwd=wanting))["packages"]
        manifest = next(each["manifest_path"] for each in packages if each["name"] == name)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(Path(manifest).parent, copy)
        words = ("--locked", "--no-run", "--test=integration", "--message-format=json")
        (copy / "integration").symlink_to(program_of_tests(run("cargo", "test", *words, cwd=copy)))
    return copy


def program_of_tests(built: str) -> str:
    """Return the program with the integration tests among what `cargo` says that it has built, a line of JSON each.

    The program that they test is there, too, before or after it.
    """
    found = [json.loads(line) for line in built.splitlines() if line.startswith("{")]
    return next(str(each["executable"]) for each in found if each.get("target", {}).get("kind") == ["test"])


def rabbitmqadmin_command(copy: Path) -> list[str]:
    """Return the command that runs all tests one after the other, those with TLS too, which `cargo` leaves out."""
    return ["env", "-C", str(copy), "./integration", "--test-threads=1", "--include-ignored"]


def rabbitmqadmin_results(output: str) -> dict[str, str]:
    """Return the results that a run has printed, by test: passed, failed or skipped."""
    words = {"ok": PASSED, "FAILED": "failed", "ignored": SKIPPED}
    return {name: words[result] for name, result in TEST.findall(output)}


def passed(results: Mapping[str, str]) -> int:
    """Return how many tests have passed."""
    return list(results.values()).count(PASSED)


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the tests that RabbitMQ passes and Leveret does not."""
    return [name for name, result in sorted(theirs.items()) if result == PASSED != ours.get(name)]
