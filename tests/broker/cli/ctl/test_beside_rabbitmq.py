"""Recorded command lines: `leveret ctl` answers what RabbitMQ's tools have answered to the same lines."""

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from processes.running import Running, serving

from leveret.broker.cli.ctl.client import ApiClient
from leveret.broker.cli.ctl.command import COMMANDS
from leveret.broker.cli.ctl.main import ABSENT, ctl

RECORDED = ("rabbitmq.txt", "rabbitmq_more.txt")
ENOUGH = 170


class Line(NamedTuple):
    """A command line, and what was answered to it."""

    words: list[str]
    differs: bool
    out: list[str]
    err: list[str]
    code: int


def recorded(name: str) -> Iterator[Line]:
    words: list[str] = []
    out: list[str] = []
    err: list[str] = []
    differs = False
    for text in Path(__file__).with_name(name).read_text().splitlines():
        mark, rest = text[:1], text[2:]
        if mark == "#":
            differs = rest.startswith("differs")
        elif mark == "$":
            words = shlex.split(rest)
        elif mark in "|!":
            (out if mark == "|" else err).append(rest)
        else:
            yield Line(words, differs, out, err, int(rest))
            out, err, differs = [], [], False


def of_rows(lines: list[str]) -> object:
    """Return what lines say, without the order of the rows of a list, which RabbitMQ does not promise."""
    if not lines or lines[0][:1] not in "[{":
        return lines[:2], sorted(lines[2:])
    value = json.loads("".join(lines))
    return sorted(value, key=json.dumps) if isinstance(value, list) else value


def difference(line: Line, out: list[str], err: list[str], code: int) -> str:
    """Return what differs from the record, nothing if all is as it should be."""
    wrong = []
    if code != line.code:
        wrong.append(f"exit code {code}, not {line.code}: {err}")
    if line.differs:
        if out[: len(line.out)] != line.out:
            wrong.append(f"{out} does not begin with {line.out}")
    elif of_rows(out) != of_rows(line.out):
        wrong.append(f"{out}, not {line.out}")
    told = [text for text in err if text]
    if len(told) < len(line.err) or not all(map(str.startswith, told, line.err)):
        wrong.append(f"{told} do not begin with {line.err}")
    return "; ".join(wrong)


@pytest.fixture
def running(tmp_path) -> Iterator[Running]:
    with serving(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", RECORDED)
def test_output_and_exit_codes_are_those_of_rabbitmq(running, name):
    """Texts, tables, JSON and exit codes are equal but for versions, figures and names of nodes."""
    with contextlib.closing(ApiClient(running.data_dir)) as api:
        node = api.get("leveret", "resources")["node"]
    port = str(running.address[1])
    differences = []
    for line in recorded(name):
        words = [port if word == "PORT" else word for word in line.words[1:]]
        result = CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), *words])
        out, err = (
            text.replace(node, "NODE").replace(port, "PORT").splitlines()
            for text in (result.stdout, result.stderr)
        )
        if wrong := difference(line, out, err, result.exit_code):
            differences.append(f"{shlex.join(line.words)}: {wrong}")

    assert [] == differences, "\n".join(differences)


def test_each_command_of_rabbitmq_is_there_or_is_named_as_absent():
    """The page tells of those that are not."""
    lines = Path(__file__).with_name("commands.txt").read_text().splitlines()[1:]
    theirs = {name for line in lines for name in line.split()}
    absent = {name for names in ABSENT.values() for name in names.split()}

    assert theirs == (theirs & COMMANDS.keys()) | absent
    assert not absent & COMMANDS.keys()


def test_enough_is_recorded():
    """Most lines are compared entirely."""
    assert ENOUGH <= sum(not line.differs for name in RECORDED for line in recorded(name))
