"""Programs with their output, commands and settings of the tutorial and the how-tos do what the pages say."""

import contextlib
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml
from processes.commands import execute
from processes.running import ROOT, Running, environment, serving

from leveret.analytics.command import main as analyze
from leveret.broker.cli.main import main
from leveret.broker.config.config import load
from leveret.broker.config.sections import METRICS_PORT
from leveret.broker.export.tables import TABLES
from leveret.broker.export.writer import Layout, finished_name

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\{?\w*\}?)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(\S*/)?leveret\s")
SECONDS = 30
PORT = "5672"
PERSISTENT = 2


class Block(NamedTuple):
    """A block between fences in a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All of a page, in order, without the indentation of a list."""
    return [
        Block(language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def run(program: str, folder: Path, *arguments: str) -> str:
    """Return the output of a program, which ends well."""
    done = execute(
        [sys.executable, "-c", program, *arguments], cwd=folder, timeout=SECONDS, env=environment()
    )

    assert 0 == done.returncode, done.stderr
    return done.stdout


def started(tmp_path: Path, stack: contextlib.ExitStack) -> Running:
    """A broker; with the data of an earlier one, if there was one."""
    broker = stack.enter_context(Running(tmp_path))
    broker.wait_for("Server startup complete")
    return broker


@pytest.mark.parametrize(
    "page", ["../README.md", "tutorial.md", "howto/choose-a-confirm-mode.md", "howto/dead-letters-and-ttl.md"]
)
def test_programs_print_what_the_page_says(tmp_path, page):
    """Each program of the page, run in order, prints the text that follows it; the broker is killed where the page does."""
    printed, documented = [], []
    with contextlib.ExitStack() as stack:
        broker = started(tmp_path, stack)
        for language, text in blocks(DOCS / page):
            if language == "sh" and "kill -9" in text:
                broker.process.kill()
                broker.process.wait(SECONDS)
                broker = started(tmp_path, stack)
            elif language == "python":
                assert PORT in text
                printed.append(run(text.replace(PORT, str(broker.address[1])), tmp_path))
            elif language == "text":
                documented.append(text)

    assert printed
    assert documented == printed


def test_the_tutorial_knows_what_a_restart_logs(tmp_path):
    """The line of the tutorial about a restart is in the log of a broker that was killed with three messages."""
    (line,) = re.findall(r"`(recovered [^`]*)`", (DOCS / "tutorial.md").read_text(encoding="utf-8"))
    send = next(text for language, text in blocks(DOCS / "tutorial.md") if language == "python")
    with serving(tmp_path) as broker:
        run(send.replace(PORT, str(broker.address[1])), tmp_path)
        broker.process.kill()
        broker.process.wait(SECONDS)
    with Running(tmp_path) as again:
        found = again.wait_for(line)

    assert line in found


def test_two_brokers_do_not_ask_for_one_port():
    """The README stops its broker before it leads to the tutorial, which says what to do if another has the port."""
    readme = (DOCS / ".." / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"[^.]*\[tutorial\][^.]*", readme)
    step = (DOCS / "tutorial.md").read_text(encoding="utf-8").partition("## 2.")[0]

    assert "Stop the broker with Ctrl-C" in sentence
    assert "already in use, stop the broker" in step


def commands(page: Path) -> list[list[str]]:
    """The commands of ours that a page has in its blocks, as words without the program."""
    joined = "\n".join(text for language, text in blocks(page) if language in {"", "sh"}).replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if COMMAND.match(line)]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def problem(words: list[str]) -> str:
    """Return the fault of a command; empty if there is none."""
    command: click.Command = main
    if words[:1] == ["analyze"]:  # another process, which takes the words behind its name
        command, words = analyze, words[1:]
    while isinstance(command, click.Group) and words[:1] and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"{command.name} has no {words[0]}"
        command, words = found, words[1:]
    context = click.Context(command)
    try:
        given, _rest, _order = command.make_parser(context).parse_args([*words])
    except click.NoSuchOption as error:
        return f"{command.name} has no {error.option_name}"
    except click.UsageError as error:
        return error.message
    if isinstance(command, click.Group):
        return "" if words else f"{command.name} needs a word more"
    for parameter in command.params:
        if parameter.required and not given.get(parameter.name) and "--help" not in words:
            return f"{command.name} needs {parameter.human_readable_name}"
        if isinstance(parameter.type, click.Choice):
            values = given.get(parameter.name) or ()
            wrong = {values} if isinstance(values, str) else set(values)
            if wrong - set(parameter.type.choices):
                return f"{command.name} knows no {', '.join(sorted(wrong - set(parameter.type.choices)))}"
    return ""


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_in_pages_exist(page):
    """Each of our commands in a page has subcommands and flags that there are."""
    assert [] == [problem(words) for words in commands(page) if problem(words)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fly"], "main has no fly"),
        (["serve", "--fly"], "serve has no --fly"),
        (["serve", "--set"], "Option '--set' requires an argument."),
        (["store", "fly"], "store has no fly"),
        (["analyze", "fly", "--input", "a", "--output", "b"], "main knows no fly"),
        (["analyze", "latency", "--input", "a"], "main needs output"),
        (["analyze", "all", "--input", "a", "--output", "b", "--fly"], "main has no --fly"),
        (["analyze", "latency", "paging", "--input", "a", "--output", "b", "--follow"], ""),
        ([], "main needs a word more"),
        (["serve", "--set", "heartbeat=7"], ""),
        (["--version"], ""),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(words, expected):
    """The check reports subcommands and flags that do not exist."""
    assert expected == problem(words)


def test_the_file_that_is_shown_lies_where_it_would():
    """The example of an exported file has the name and the folders that its time gives it."""
    page = (DOCS / "howto" / "analyse-with-spark.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^/.*\.jsonl$", page, re.MULTILINE)
    table, ts, number = re.fullmatch(r"(\w+)-(\d+)-(\d+)\.jsonl", Path(shown).name).groups()
    layout = Layout(Path(shown).parents[4], "rabbit@host")

    assert Path(shown) == finished_name(layout.unfinished(table, layout.hour(int(ts)), int(ts), int(number)))


@pytest.mark.parametrize("table", [*TABLES])
def test_every_exported_table_is_introduced(table):
    """The page about analysing says of each table what a row of it is."""
    rows = re.findall(r"^\| (`.*`) \|", (DOCS / "howto" / "analyse-with-spark.md").read_text(), re.MULTILINE)

    assert any(f"`{table}`" in row for row in rows)


@pytest.mark.parametrize(
    ("page", "settings"),
    [(page.name, text) for page in PAGES for language, text in blocks(page) if language == "ini"],
)
def test_settings_in_pages_can_be_loaded(tmp_path, page, settings):
    """Each block of settings in a page is a configuration without a problem."""
    del page
    file = tmp_path / "page.conf"
    file.write_text(settings)

    assert load([file]) is not None


@pytest.mark.parametrize(
    ("page", "text"),
    [(page.name, text) for page in PAGES for language, text in blocks(page) if language == "yaml"],
)
def test_yaml_in_pages_can_be_read(page, text):
    """Each block of YAML in a page is a mapping, and asks only for paths and the port that the broker answers on."""
    del page
    values = yaml.safe_load(text)
    probes = [value["httpGet"] for value in values.values() if "httpGet" in value]

    assert values
    assert all(probe["port"] == METRICS_PORT for probe in probes)
    assert {probe["path"] for probe in probes} <= {"/healthz", "/readyz"}
