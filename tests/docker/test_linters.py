"""Linters find nothing wrong with the image's files, on machines that have these programs."""

import shutil

import pytest
from processes.commands import execute
from processes.running import ROOT

DOCKER = ROOT / "docker"
SECONDS = 50


@pytest.mark.parametrize(
    "words",
    [
        ["hadolint", DOCKER / "Dockerfile"],
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
    """hadolint, shellcheck and promtool have no complaint."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not on this machine")
    done = execute(words, timeout=SECONDS)

    assert 0 == done.returncode, done.stdout + done.stderr
