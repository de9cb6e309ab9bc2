"""Linters find nothing wrong with the image's files; hadolint comes with the tests, the others with some machines."""

import shutil
import sys
from pathlib import Path

import pytest
from processes.commands import execute
from processes.running import ROOT

DOCKER = ROOT / "docker"
HADOLINT = Path(sys.executable).with_name("hadolint")
SECONDS = 50


@pytest.mark.parametrize(
    "words",
    [
        ["shellcheck", DOCKER / "entrypoint.sh"],
        ["shellcheck", DOCKER.parent / "systemd" / "deb.sh"],
        ["shellcheck", ROOT / "tests" / "services" / "rabbitmq_root.sh"],
        ["promtool", "check", "config", DOCKER / "prometheus" / "prometheus.yml"],
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", DOCKER / "prometheus" / "alerts.yml"],
        ["promtool", "test", "rules", ROOT / "tests" / "docker" / "alerts.yml"],
    ],
    ids=lambda words: " ".join(map(str, words[:3])).replace(f"{DOCKER}/", ""),
)
def test_a_linter_finds_nothing(words):
    """Shellcheck and promtool have no complaint."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not on this machine")
    done = execute(words, timeout=SECONDS)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_the_linter_of_dockerfiles_finds_nothing():
    """Hadolint has no complaint, and has one when a shell stands before the program."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    wrong = text.replace('ENTRYPOINT ["leveret", "analyze"]', "ENTRYPOINT leveret analyze")

    assert (0, "") == _hadolint(text)
    assert "DL3025" in _hadolint(wrong)[1]


def _hadolint(text):
    """Return the exit code of hadolint for a Dockerfile, and what it says."""
    done = execute([HADOLINT, "-"], input=text, timeout=SECONDS)
    return done.returncode, done.stdout + done.stderr
