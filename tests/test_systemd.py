"""The unit for systemd names flags, folders and exit codes that exist."""

import configparser
import shlex
import shutil
import sys

import pytest
from processes.commands import execute
from processes.running import ROOT

from leveret.broker import exit_codes
from leveret.broker.cli.main import serve

UNIT = ROOT / "systemd" / "leveret.service"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


def words() -> list[str]:
    return shlex.split(unit()["Service"]["ExecStart"].replace("/%i", ""))


def test_the_broker_is_waited_for():
    """The service manager waits for READY from the broker's main process, and for its watchdog notifications."""
    service = unit()["Service"]

    assert ("notify", "main") == (service["Type"], service["NotifyAccess"])
    assert int(service["WatchdogSec"])


def test_the_command_is_one_of_ours():
    """Each flag of the command is a flag of `leveret serve`."""
    known = {name for parameter in serve.params for name in parameter.opts}
    program, command, *rest = words()

    assert ("/opt/leveret/bin/leveret", "serve") == (program, command)
    assert {word for word in rest if word.startswith("--")} <= known


def test_the_folders_are_those_that_systemd_makes():
    """The paths read and written are those of ConfigurationDirectory and StateDirectory; no other can be written."""
    service = unit()["Service"]
    given = dict(zip(words()[2::2], words()[3::2], strict=True))

    assert f"/etc/{service['ConfigurationDirectory']}" == given["--config"]
    assert f"/var/lib/{service['StateDirectory']}" == given["--data-dir"]
    assert "strict" == service["ProtectSystem"]


def test_what_cannot_get_better_is_not_tried_again():
    """Unreadable data and a wrong configuration, by their exit codes, are not followed by a restart."""
    service = unit()["Service"]

    assert "on-failure" == service["Restart"]
    assert [exit_codes.DATA, exit_codes.CONFIG] == [
        int(code) for code in service["RestartPreventExitStatus"].split()
    ]


def test_a_reload_opens_log_files_anew():
    """A reload sends the broker's signal for reopening log files, and changes nothing else."""
    assert ["/bin/kill", "-HUP", "$MAINPID"] == shlex.split(unit()["Service"]["ExecReload"])


def test_it_is_not_root():
    """The service has a user of its own, no capabilities, and no way to get any."""
    service = unit()["Service"]

    assert "leveret" == service["User"]
    assert "" == service["CapabilityBoundingSet"]
    assert "true" == service["NoNewPrivileges"]


@pytest.mark.parametrize("name", ["leveret", "leveret@", "leveret@orders"])
def test_systemd_understands_the_unit(tmp_path, name):
    """Each line of the unit is valid for systemd under each name; only the program, which is not installed, is replaced."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    unit = tmp_path / f"{name}.service"
    text = UNIT.read_text()
    unit.write_text(text.replace("/opt/leveret/bin/leveret", sys.executable))
    done = execute(["systemd-analyze", "verify", unit], timeout=50)

    assert (0, "") == (done.returncode, done.stderr)


def test_no_core_is_written():
    """A core would have passwords and messages of clients in it."""
    assert "0" == unit()["Service"]["LimitCORE"]
