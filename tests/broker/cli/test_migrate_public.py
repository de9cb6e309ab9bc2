"""Configuration and definitions files of public projects: each has the outcome that is recorded beside it.

The files are ours, and have what those of the projects have: keys, forms, mistakes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from leveret.broker.cli.main import main

RECORDED = Path(__file__).with_name("public_files.txt")
_TITLES = {
    "Set (key = value)": "obeyed",
    "Without effect": "without effect",
    "Warnings": "warned",
    "Not on this machine, but needed": "needed",
    "Refused": "refused",
    "Cannot exist here, or belong to what cannot": "left out",
}


class Recorded(NamedTuple):
    """A file of a project, and its outcome."""

    project: str
    name: str
    text: str
    outcome: str


def recorded() -> Iterator[Recorded]:
    """Yield the files: each begins with `== PROJECT NAME`, and ends with its outcome in lines that begin with `=> `."""
    for block in re.split(r"(?m)^== ", RECORDED.read_text(encoding="utf-8"))[1:]:
        heading, _, rest = block.partition("\n")
        project, name = heading.split(" ")
        text, _, outcome = rest.partition("\n=> ")
        yield Recorded(project, name, text + "\n", "=> " + outcome.rstrip("\n"))


def outcome_of(name: str) -> str:
    """Check a file of the working directory; returns the exit code, and the names of what each section lists."""
    done = CliRunner().invoke(main, ["migrate", "check", name])
    found: dict[str, list[str]] = {}
    title = ""
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith("leveret: "):
            found["refused"] = [line.removeprefix("leveret: ")]
        elif not line.startswith("  "):
            title = _TITLES.get(line, "")
        elif title == "without effect":
            found.setdefault(title, []).extend([line.split(": ")[1]] if line.startswith("    ") else [])
        elif title:
            shown = line.strip()
            found.setdefault(title, []).append(
                shown.split(" = ")[0] if title in {"obeyed", "needed"} else shown
            )
    lines = [f"=> {done.exit_code}"]
    lines += [f"=> {each}: {'; '.join(names)}" for each, names in found.items()]
    return "\n".join(lines)


FILES = list(recorded())


@pytest.mark.parametrize("file", FILES, ids=[f"{each.project} {each.name}" for each in FILES])
def test_each_public_file_has_its_outcome(file, tmp_path, monkeypatch):
    """Its settings are obeyed, without effect or refused, and its definitions left out, as recorded."""
    monkeypatch.chdir(tmp_path)
    Path(file.name).write_text(file.text)

    assert file.outcome == outcome_of(file.name)


@pytest.mark.parametrize("file", FILES, ids=[f"{each.project} {each.name}" for each in FILES])
def test_what_is_written_instead_starts(file, tmp_path, monkeypatch):
    """Without what single entries do wrong, a broker starts, unless something is missing."""
    monkeypatch.chdir(tmp_path)
    Path(file.name).write_text(file.text)
    done = CliRunner().invoke(main, ["migrate", "check", file.name, "--write", "new"])
    written = [f"new/{each.name}" for each in Path("new").glob("*")]
    if not written or "is missing" in done.stdout:
        return
    again = CliRunner().invoke(main, ["migrate", "check", *written])

    is_whole = "Not on this machine, but needed\n" not in again.stdout
    verdict = "Verdict: starts" if is_whole else "Verdict: starts once the files that are needed are there"
    assert (0, verdict) == (again.exit_code, again.stdout.splitlines()[-1])


def test_there_are_enough():
    """Files of at least forty projects, in each form."""
    assert 40 <= len({each.project for each in FILES})
    assert {".conf", ".config", ".json"} <= {Path(each.name).suffix for each in FILES}
