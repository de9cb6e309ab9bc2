"""Brokers that commands find without a data directory."""

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import default_data_dir
from leveret.broker.cli.ctl.main import ctl
from leveret.broker.http import running_brokers
from leveret.broker.http.running_brokers import NAME


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A working directory and a runtime directory with no broker, and none of the service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_brokers, "USUAL", (Path("var"),))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("LEVERET_CTL_DATA_DIR", "LEVERET_DATA_DIR", "RABBITMQ_MNESIA_DIR", "RABBITMQ_MNESIA_BASE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def broker(directory: Path, ending) -> Path:
    """Have a socket listen as that of a broker, and its file among those that run."""
    directory.mkdir()
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(directory / NAME))
    sock.listen()
    ending(sock.close)
    return directory


def announce(directory: Path, number: int) -> None:
    """Write the file of a broker with another process id."""
    runtime = running_brokers.runtime_directory(os.environ)
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    (runtime / str(number)).write_text(str(directory))


def test_the_only_broker_of_a_user_is_used_and_named(tmp_path, request, capsys):
    """While it runs; a file that a killed broker has left leads nowhere."""
    directory = broker(tmp_path / "data", request.addfinalizer)
    with running_brokers.announced(directory, os.environ, print):
        announce(tmp_path / "gone", 2)
        assert directory == default_data_dir()
        assert f"the broker on {directory}:\n" == capsys.readouterr().err

    assert Path("var") == default_data_dir()
    assert "" == capsys.readouterr().err


def test_of_several_brokers_none_is_chosen(tmp_path, request):
    """The error lists them, and says how to choose."""
    for number, name in enumerate(("one", "two"), 1):
        announce(broker(tmp_path / name, request.addfinalizer), number)
    done = CliRunner().invoke(ctl, ["ping"])

    assert exit_codes.USAGE == done.exit_code
    assert (
        "Error: several brokers of this user run: choose one with --data-dir or LEVERET_DATA_DIR\n"
        f"  {tmp_path / 'one'}\n  {tmp_path / 'two'}"
    ) in done.output
    assert 0 == CliRunner().invoke(ctl, ["help", "list_queues"]).exit_code


def test_the_directory_of_the_working_directory_comes_first(tmp_path, request, monkeypatch):
    """If its broker runs; a variable comes before all."""
    announce(broker(tmp_path / "data", request.addfinalizer), 1)
    broker(tmp_path / "var", request.addfinalizer)
    assert Path("var") == default_data_dir()
    monkeypatch.setenv("LEVERET_DATA_DIR", "other")

    assert Path("other") == default_data_dir()


def test_files_of_others_are_not_believed(tmp_path, request):
    """A runtime directory that others may write to leads nowhere, and nothing is put into it."""
    directory = broker(tmp_path / "data", request.addfinalizer)
    announce(directory, 1)
    runtime = running_brokers.runtime_directory(os.environ)
    runtime.chmod(0o777)
    assert [] == running_brokers.found(os.environ)
    with running_brokers.announced(directory, os.environ, print):
        assert ["1"] == [each.name for each in runtime.iterdir()]


def test_a_broker_starts_without_a_runtime_directory(tmp_path):
    """Commands do not find it then, which is told."""
    told: list[tuple[object, ...]] = []
    nowhere = {"XDG_RUNTIME_DIR": os.devnull}
    with running_brokers.announced(tmp_path, nowhere, lambda *texts: told.append(texts)):
        assert [] == running_brokers.found(nowhere)
    ((text, error),) = told
    assert "cannot find this broker" in str(text)
    assert os.devnull in str(error)
