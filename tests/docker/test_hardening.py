"""The image's random password and bill of materials, and what the broker and systemd do about default credentials."""

import os
import re
import sys
from pathlib import Path

import pytest
from doubles.fakes import Node
from processes.commands import execute
from processes.running import ROOT

from leveret.broker.auth.users import default_credentials, open_credentials

sys.path.insert(0, str(ROOT / "docker"))

import sbom

PRINTED = re.compile(r"leveret: the password of user (\S+) is (\S+) \(printed only now\)\n")
UNIT = (ROOT / "systemd" / "leveret.service").read_text()


@pytest.fixture
def passwords(tmp_path):
    """Runs the entry point with a `leveret` that prints its password; returns that and what was told."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    leveret = binaries / "leveret"
    leveret.write_text('#!/bin/sh\nprintf "%s" "${RABBITMQ_DEFAULT_PASS-none}"\n')
    leveret.chmod(0o755)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))
    }

    def run(**variables: str) -> tuple[str, str]:
        given = {"LEVERET_DATA_DIR": str(tmp_path / "data"), **variables}
        done = execute(
            [ROOT / "docker" / "entrypoint.sh"],
            env={**clean, "PATH": f"{binaries}:{clean['PATH']}", **given},
            cwd=tmp_path,
            timeout=30,
            check=True,
        )
        return done.stdout, done.stderr

    return run


def test_a_random_password_is_made_and_told_once(passwords, tmp_path):
    """For an empty data directory; each time it is another one, and later starts make none."""
    password, told = passwords(LEVERET_RANDOM_PASSWORD="1", RABBITMQ_DEFAULT_USER="ada")
    assert ("ada", password) == PRINTED.fullmatch(told).groups()
    assert len(password) >= 24
    assert password != passwords(LEVERET_RANDOM_PASSWORD="1")[0]

    (tmp_path / "data" / "store").mkdir(parents=True)
    assert ("none", "") == passwords(LEVERET_RANDOM_PASSWORD="1")


@pytest.mark.parametrize(
    ("variables", "password"),
    [
        ({}, "none"),
        ({"LEVERET_RANDOM_PASSWORD": "0"}, "none"),
        ({"LEVERET_RANDOM_PASSWORD": "1", "RABBITMQ_DEFAULT_PASS": "mine"}, "mine"),
        ({"LEVERET_RANDOM_PASSWORD": "1", "LEVERET_DEFAULT_PASS": "mine"}, "none"),
    ],
)
def test_a_password_of_ones_own_is_kept(passwords, variables, password):
    """Whichever variable has it; and without the switch nothing is made."""
    assert (password, "") == passwords(**variables)


def test_guest_from_anywhere_is_warned_about():
    """Only while it has its default password and may log in from any host."""
    node = Node()
    assert "" == open_credentials(node.users)
    assert "from this host only" in default_credentials(node.users)
    node.users.loopback_users = frozenset()
    assert "from any host" in open_credentials(node.users) == default_credentials(node.users)
    node.users.remove("guest")
    assert "" == open_credentials(node.users) == default_credentials(node.users)


def test_the_bill_of_materials_has_every_package():
    """With version, package URL and licence; the same environment gives the same bill."""
    prefix = Path(sys.prefix)
    sbom.MAIN = "pytest"  # this environment has the project as a path, not as a package
    bill = sbom.bill(prefix)
    found = {each["name"].lower(): each for each in bill["components"]}

    assert bill == sbom.bill(prefix)
    assert ("CycloneDX", "1.5") == (bill["bomFormat"], bill["specVersion"])
    assert f"pkg:pypi/aiohttp@{found['aiohttp']['version']}" == found["aiohttp"]["purl"]
    assert found["aiohttp"]["licenses"]
    assert len(found) > 10


@pytest.mark.parametrize(
    "line",
    [
        "ConfigurationDirectoryMode=0750",
        "SystemCallFilter=@system-service",
        "ProtectProc=invisible",
        "MemoryMax=80%",
        "NoNewPrivileges=true",
    ],
)
def test_the_unit_is_hardened(line):
    """Files with passwords are not for others, system calls are filtered, memory is limited."""
    assert line in UNIT.splitlines()
