"""`leveret config`."""

import pytest
from click.testing import CliRunner
from processes.terminal import Terminal

from leveret.broker import exit_codes
from leveret.broker.cli.main import main


def run(*arguments):
    """Run the command, without a terminal."""
    return CliRunner().invoke(main, ["config", *arguments])


def test_settings_are_listed_with_their_origin(tmp_path):
    """Of files and flags, without passwords; then what has no effect by the reason, and whether a broker starts."""
    path = tmp_path / "a.conf"
    path.write_text("default_pass = hush\nraft.x = 1\n")
    done = run("--config", str(path), "--set", "heartbeat=7", "--data-dir", str(tmp_path))
    lines = [line.split() for line in done.output.splitlines()]

    assert 0 == done.exit_code
    assert ["heartbeat", "=", "7", "--set"] in lines
    assert ["default_pass", "=", "***", f"{path}:1"] in lines
    assert ["data_dir", "=", str(tmp_path), "--data-dir"] in lines
    assert f"    {path}:2: raft.x" in done.output.partition("Without effect\n")[2].splitlines()
    assert "3 set, 1 without effect or with a warning: a broker starts" == done.output.splitlines()[-1]
    assert "hush" not in done.output
    assert "channel_max" not in done.output


def test_all_keys_are_listed_on_request(tmp_path):
    """Below what a file sets; without a file they are always."""
    path = tmp_path / "a.conf"
    path.write_text("heartbeat = 7\n")
    for arguments in (("--config", str(path), "--all"), ()):
        assert "channel_max = 2047" in run(*arguments).output


def test_a_key_is_explained():
    """With its value if it is set."""
    done = run("heartbeat", "--set", "heartbeat=7")

    assert 0 == done.exit_code
    assert done.output.startswith("heartbeat = 60s\n")
    assert "heartbeat = 7  (--set)" in done.output


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("heartbit", "there is no key heartbit; did you mean heartbeat"),
        ("zzzzqqqq", "there is no key zzzzqqqq\n"),
    ],
)
def test_a_key_that_does_not_exist(written, text):
    """Is an error with names that are near, if there are some."""
    done = run(written)

    assert exit_codes.USAGE == done.exit_code
    assert text in done.stderr


def test_the_ignored_keys_alone():
    """For somebody who migrates."""
    done = run("--ignored")

    assert 0 == done.exit_code
    assert done.output.startswith("Keys of RabbitMQ that are accepted and have no effect")
    assert "heartbeat" not in done.output


def test_an_invalid_configuration_is_reported():
    """As at the start of the broker."""
    done = run("--set", "heartbeat=often", "--set", "nonsense=1")

    assert exit_codes.CONFIG == done.exit_code
    assert 2 == len(done.stderr.splitlines())


def test_a_terminal_shows_it_in_a_pager(tmp_path):
    """From the top, with lines that fit; a short text needs no pager."""
    shown = tmp_path / "shown"
    with Terminal("config", "--set", "heartbeat=7", PAGER=f"tee {shown}") as terminal:
        assert 0 == terminal.ended()[0]
    lines = shown.read_text().splitlines()
    with Terminal("config", "heartbeat", PAGER="false") as short:
        assert 0 == short.ended()[0]

    assert ["Set (key = value)", "  heartbeat = 7  --set"] == lines[:2]
    assert max(map(len, lines)) <= 80
    assert "LEVERET_HEARTBEAT" in short.text


def test_a_file_without_an_end_is_refused():
    """A configuration is read up to a limit, whatever its name leads to."""
    done = run("--config", "/dev/zero")

    assert exit_codes.CONFIG == done.exit_code
    assert "cannot read /dev/zero: is larger than" in done.output
