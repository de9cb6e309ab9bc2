"""Commits since the rule was written down have the form of CONTRIBUTING.md."""

import pytest
from checks.commits import problems
from checks.repository import git
from processes.commands import execute
from processes.running import ROOT

BASE = "712843b25e9e3fd3a730351082509f8e3971c212"
"""The last commit before the rule; what came before it is as it is."""


def test_new_commits_have_the_form():
    """Each commit since then has a subject `area: verb object` of at most 72 characters, and a body."""
    if git("merge-base", "--is-ancestor", BASE, "HEAD") is None:
        pytest.skip("no repository with the whole history")
    messages = git("log", "--no-merges", "--format=%B%x00", f"{BASE}..HEAD").split("\0")
    wrong = [
        (message.strip().splitlines()[0], problems(message.strip()))
        for message in messages
        if message.strip()
    ]

    assert [] == [each for each in wrong if each[1]]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("storage: count bodies in files\n\nThey were not.", []),
        ("make, docs: fold targets\n\nThere were forty.\n\nCo-Authored-By: A <a@b>", []),
        ('Revert "storage: count bodies"\n', []),
        ("storage: count bodies in files", ["no body says why"]),
        ("storage: count bodies\n\nSigned-off-by: A <a@b>", ["no body says why"]),
        ("storage: count bodies\nat once\n\nWhy.", ["the line below the subject is not empty"]),
        ("Count bodies\n\nWhy.", ["the subject is not `area: verb object`"]),
        ("storage: count\n\nWhy.", ["the subject is not `area: verb object`"]),
        ("storage: count " + "x" * 58 + "\n\nWhy.", ["the subject has 73 characters, 72 are the most"]),
    ],
)
def test_problems_of_a_message_are_reported(message, expected):
    """The check knows the form, and what git writes itself."""
    assert expected == problems(message)


def test_the_hook_refuses_a_message(tmp_path):
    """`.githooks/commit-msg` ends with an error, and says why, where a message is wrong; it is silent otherwise."""
    file = tmp_path / "message"
    hook = ROOT / ".githooks" / "commit-msg"
    results = []
    for message in ("storage: count bodies\n", "storage: count bodies\n\nThey were not.\n"):
        file.write_text(message)
        done = execute([str(hook), str(file)], cwd=ROOT, timeout=30)
        results.append((done.returncode, done.stderr))

    assert [(1, "no body says why\n"), (0, "")] == results
