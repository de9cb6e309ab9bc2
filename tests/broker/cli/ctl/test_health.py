"""Commands about other nodes, and those that look at the machine."""

import pytest
from click.testing import CliRunner
from processes.running import Running, serving

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.health import last_lines
from leveret.broker.cli.ctl.main import ctl


@pytest.mark.parametrize("number", [0, 1, 3, 9999, 20000])
def test_the_last_lines_of_a_file(tmp_path, number):
    """Also of one that is longer than what is read at once."""
    lines = [f"line {at} of many" for at in range(10000)]
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")

    assert (lines[-number:] if number else []) == last_lines(path, number)


def test_a_broker_with_a_log_file(tmp_path):
    """`log_tail` prints its end; waiting for a second node or for a file that does not come ends with 75."""
    log = tmp_path / "leveret.log"
    with Running(tmp_path, "--set", f"log.file={log}") as running:

        def run(*words: str) -> tuple[int, str]:
            result = CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), "-q", *words])
            return result.exit_code, result.output

        assert (0, "") == run("await_startup")
        code, text = run("log_tail", "-N", "2")
        assert (0, log.read_text().splitlines()[-2:]) == (code, text.splitlines())
        assert exit_codes.TEMPORARY == run("await_online_nodes", "2")[0]
        assert exit_codes.TEMPORARY == run("wait", str(tmp_path / "none"), "-t", "0.2")[0]
        assert (0, "") == run("wait", str(log))
        code, text = run("check_certificate_expiration", "--unit", "eons")
        assert (exit_codes.DATA, True) == (code, "eons" in text)


def test_the_version_is_that_of_the_broker(tmp_path):
    """The broker's, which its profile decides, and 3.13's if none runs."""
    with serving(tmp_path, "--set", "compatibility.profile=4.3") as running:
        told = {
            command: CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), "-q", command]).output
            for command in ("server_version", "status", "version")
        }
    assert "4.3.6\n" == told["version"] == told["server_version"]
    assert "RabbitMQ version: 4.3.6" in told["status"]
    assert "3.13.7\n" == CliRunner().invoke(ctl, ["--data-dir", str(tmp_path), "-q", "version"]).output
