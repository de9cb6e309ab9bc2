"""The page with a program for each client: those whose client is installed print what the page says.

Clients that are not in the environment of the tests are found by variables: `LEVERET_CLIENTS_PYTHON`, a Python that has them;
`NODE_PATH` and `CLASSPATH`, as node and java read them; `LEVERET_CLIENTS_GO`, a module that requires the client of Go.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes.commands import execute
from processes.running import ROOT, environment, serving

PAGE = (ROOT / "docs" / "howto" / "connect-clients.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)$.*?^```(\w+)\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = {name: (language, program, output) for name, language, program, output in SECTION.findall(PAGE)}
SECONDS = 90


def succeeds(*words: str, cwd: Path | None = None) -> bool:
    """Return whether a command ends with 0."""
    if shutil.which(words[0]) is None:
        return False
    done = subprocess.run(words, cwd=cwd, capture_output=True, timeout=SECONDS, check=False)
    return not done.returncode


def runner(language: str, program: str, folder: Path) -> tuple[list[str], Path] | None:
    """Return a command that runs a program, and where; None if its client is not installed."""
    (folder / "Orders.java").write_text(program)
    match language:
        case "python":
            names = re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)
            pythons = (sys.executable, os.environ.get("LEVERET_CLIENTS_PYTHON", sys.executable))
            usable = (each for each in pythons if succeeds(each, "-c", f"import {', '.join(names)}"))
            python = next(usable, None)
            return python and ([python, "-c", program], folder)
        case "js":
            return (["node", "-e", program], folder) if succeeds("node", "-e", "require('amqplib')") else None
        case "java":
            is_there = "amqp-client" in os.environ.get("CLASSPATH", "") and shutil.which("java")
            return (["java", "Orders.java"], folder) if is_there else None
        case "go":
            module = os.environ.get("LEVERET_CLIENTS_GO")
            if module is None:
                return None
            shutil.copytree(module, folder / "module", ignore=shutil.ignore_patterns("*.go"))
            (folder / "module" / "main.go").write_text(program)
            return ["go", "run", "."], folder / "module"
    raise ValueError(language)


def test_each_client_has_a_section():
    """The page has the frameworks of Python and three other languages."""
    named = ["Django", "aio-pika and FastAPI", "FastStream", "dramatiq", "taskiq", "Node", "Java", "Go"]
    assert named == list(SECTIONS)


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", SECTIONS)
def test_a_program_prints_what_the_page_says(tmp_path, name):
    """The program publishes to a broker and handles its message."""
    language, program, output = SECTIONS[name]
    with serving(tmp_path) as broker:
        found = runner(language, program.replace("5672", str(broker.address[1])), tmp_path)
        if found is None:
            pytest.skip(f"the client of {name} is not installed")
        words, folder = found
        done = execute(words, cwd=folder, env=environment(), timeout=SECONDS)

    assert (0, output) == (done.returncode, done.stdout), done.stderr
