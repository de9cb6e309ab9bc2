"""`leveret ctl` against a running broker."""

import json
import stat
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result
from running import Running

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.main import ctl

Ctl = Callable[..., Result]


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """A broker without an HTTP listener, in a directory whose path is longer than the address of a socket."""
    with Running(tmp_path_factory.mktemp("d" * 120)) as made:
        made.wait_for("Server startup complete")
        yield made


@pytest.fixture
def run(running) -> Ctl:
    """Run a command."""

    def run(*arguments: str, **given: str) -> Result:
        return CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), *arguments], **given)

    return run


def test_only_the_owner_can_open_the_socket(running):
    """Its mode is 0600."""
    assert 0o600 == stat.S_IMODE((running.data_dir / "ctl.sock").stat().st_mode)


def test_a_user_is_added_listed_and_deleted(run):
    """The commands print what RabbitMQ's do, and an existing user is an error with its exit code."""
    added = run("add_user", "ann", "secret")
    again = run("add_user", "ann", "secret")

    assert (0, 'Adding user "ann" ...') == (added.exit_code, added.stdout.splitlines()[0])
    assert (exit_codes.SOFTWARE, 'Error:\nUser "ann" already exists\n') == (again.exit_code, again.stderr)
    assert "Success" in run("authenticate_user", "ann", "secret").stdout
    assert exit_codes.DATA == run("authenticate_user", "ann", "wrong").exit_code
    assert 0 == run("set_user_tags", "ann", "monitoring").exit_code
    assert "user\ttags\nann\t[monitoring]\nguest\t[administrator]\n" == run("-q", "list_users").stdout
    assert "ann\t[monitoring]\nguest\t[administrator]\n" == run("list_users", "-s").stdout
    assert [
        {"user": "ann", "tags": ["monitoring"]},
        {"user": "guest", "tags": ["administrator"]},
    ] == json.loads(run("list_users", "--formatter", "json").stdout)
    assert 0 == run("delete_user", "ann").exit_code
    assert exit_codes.NO_USER == run("delete_user", "ann").exit_code


def test_a_password_is_read_from_standard_input(run):
    """So that it stands in no list of processes."""
    assert 0 == run("add_user", "reader", input="from stdin\n").exit_code
    assert 0 == run("authenticate_user", "reader", "from stdin").exit_code


def test_the_memory_limit_is_changed_while_the_broker_runs(run, running):
    """A limit below what is in use raises the alarm at once, and a higher one clears it."""
    assert 0 == run("set_vm_memory_high_watermark", "absolute", "1MB").exit_code
    running.wait_for("memory alarm raised")
    assert 0 == run("set_vm_memory_high_watermark", "0.4").exit_code
    running.wait_for("memory alarm cleared")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("list_queus",), exit_codes.USAGE, "Did you mean 'list_queues'?"),
        (("add_user",), exit_codes.USAGE, "not enough arguments."),
        (("list_queues", "nonsense"), exit_codes.USAGE, "Info key(s) nonsense are not supported"),
        (("set_vm_memory_high_watermark", "5"), exit_codes.DATA, "a fraction between 0.0 and 1.0"),
        (("set_disk_free_limit", "much"), exit_codes.DATA, "no size"),
        (("set_log_level", "loud"), exit_codes.UNAVAILABLE, "level must be one of"),
        (("list_users", "--uri", "ftp://x"), exit_codes.USAGE, "exclude each other"),
    ],
)
def test_a_wrong_argument_is_told_with_its_exit_code(run, arguments, code, text):
    """As RabbitMQ's tools do."""
    result = run(*arguments)

    assert code == result.exit_code
    assert text in result.stderr


def test_a_broker_that_does_not_run_is_named(tmp_path):
    """The error says which directory was meant, and what to do."""
    absent = CliRunner().invoke(ctl, ["ping", "--data-dir", str(tmp_path / "none")])
    stopped = CliRunner().invoke(ctl, ["ping", "--data-dir", str(tmp_path)])

    assert (exit_codes.UNAVAILABLE, exit_codes.UNAVAILABLE) == (absent.exit_code, stopped.exit_code)
    assert "the directory does not exist" in absent.stderr
    assert "it is not running; start it with `leveret serve`" in stopped.stderr


def test_the_broker_is_stopped(tmp_path):
    """`stop` ends the process as SIGTERM does, and the socket is removed."""
    with Running(tmp_path) as running:
        running.wait_for("Server startup complete")
        asked = CliRunner().invoke(ctl, ["rotate_logs", "--data-dir", str(running.data_dir)])
        stopped = CliRunner().invoke(ctl, ["stop", "--data-dir", str(running.data_dir)])
        running.process.wait(60)

    assert (asked.exit_code, stopped.exit_code) == (0, 0)
    assert not (running.data_dir / "ctl.sock").exists()
