"""The page about looking at messages: its program, its commands, and what they print."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from processes.commands import execute
from processes.running import ROOT, Running, environment, serving

from leveret.broker.cli import entry
from leveret.broker.embedded.synchronous import Broker

PAGE = (ROOT / "docs" / "howto" / "look-at-messages.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM, EMBEDDED = [text for language, text in BLOCKS if language == "python"]
PORT = "5672"
SECONDS = 30


def same(text: str) -> list[str]:
    """Return the lines of an output without what depends on the time: ages, moments, widths of columns."""
    text = re.sub(r"\b\d+s\b", "Ns", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def shop(tmp_path) -> Iterator[Running]:
    """A broker on which the program of the page has run, and that knows how old its messages are."""
    with serving(tmp_path) as running:
        program = PROGRAM.replace(PORT, str(running.address[1]))
        subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS, env=environment())
        while '"age":null' in command(running, "leveret peek orders --format json").replace(" ", ""):
            assert running.process.poll() is None
        yield running


def command(running: Running, line: str) -> str:
    _, name, *words = shlex.split(line)
    if name == "explain":
        words[1:1] = ["--data-dir", str(running.data_dir)]
    else:
        words += ["--data-dir", str(running.data_dir)]
    result = CliRunner().invoke(entry.load(name), words)

    assert 0 == result.exit_code, result.output
    return result.stdout


@pytest.mark.timeout(60)
def test_the_commands_print_what_the_page_says(shop):
    """Each command of the page, run in order, prints the text that follows it."""
    found = [(language, text) for language, text in BLOCKS if language in {"sh", "text"}]
    pairs = list(zip(found[::2], found[1::2], strict=True))

    assert len(pairs) > 5
    for (shell, typed), (plain, output) in pairs:
        assert ("sh", "text") == (shell, plain)
        assert same(output) == same("".join(command(shop, line) for line in typed.splitlines()))


@pytest.mark.timeout(60)
def test_an_exchange_is_followed_as_the_page_says(shop):
    """The tail shows what the program of the page publishes, and ends."""
    (block, _) = [text for language, text in BLOCKS if language == "console"]
    typed, begun, *lines = block.splitlines()
    words = [sys.executable, "-m", *shlex.split(typed.removeprefix("$ ")), "--data-dir", str(shop.data_dir)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment(), **pipes) as tail:
        assert f"{begun}\n" == tail.stderr.readline()
        program = PROGRAM.replace(PORT, str(shop.address[1]))
        subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS, env=environment())
        output, errors = tail.communicate(timeout=SECONDS)

    assert "" == errors
    assert [line[14:] for line in lines] == [line[14:] for line in output.splitlines()]


def test_the_embedded_broker_is_followed():
    """The program at the end prints the body of what it publishes."""
    words = [sys.executable, "-c", EMBEDDED]
    done = execute(words, check=True, timeout=SECONDS, env=environment())

    assert "b'one'\n" == done.stdout


def test_the_python_of_the_page_runs():
    """The expression at the end is one that an embedded broker understands."""
    (expression,) = [text for language, text in BLOCKS if language == "py"]
    with Broker() as broker:
        broker.declare("failed")
        assert [] == eval(expression, {"broker": broker})
