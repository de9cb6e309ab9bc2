"""`leveret definitions ...` and `load_definitions`: files, exit codes, and use beside a running broker."""

import json
import signal
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result
from processes.running import Running

from leveret.broker.cli.main import main
from leveret.broker.shovel.shovels import Shovels

QUEUE = {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": 5}}
HASH = "3C+HLqzwCZid64laFJT5tq6dENkW0u7fDfzeHbckojVsNToC"
"""Hash of the password `pw`."""
ANN = {"name": "ann", "tags": ["management"], "password_hash": HASH}
RIGHTS = {"user": "ann", "vhost": "/", "configure": "", "write": "", "read": ".*"}


def definitions(*words: str) -> Result:
    """Run `leveret definitions`."""
    return CliRunner().invoke(main, ["definitions", *words])


def written(path: Path, **sections: Any) -> Path:
    path.write_text(json.dumps(sections))
    return path


def exported(data_dir: Path) -> dict[str, Any]:
    done = definitions("export", "--data-dir", str(data_dir))
    assert 0 == done.exit_code, done.stderr
    return json.loads(done.stdout)


def test_what_is_imported_is_exported(tmp_path):
    """An import into an empty directory adds to a first start's objects; a second import finds everything there."""
    file = written(tmp_path / "file.json", users=[ANN], permissions=[RIGHTS], queues=[QUEUE])
    codes = [
        definitions("import", "--data-dir", str(tmp_path / "data"), str(file)).exit_code for _ in range(2)
    ]
    found = exported(tmp_path / "data")

    assert [0, 0] == codes
    assert ["ann", "guest"] == sorted(each["name"] for each in found["users"])
    assert [("q", {"x-max-length": 5})] == [(each["name"], each["arguments"]) for each in found["queues"]]


def test_an_import_lists_what_it_leaves_out(tmp_path):
    """`--on-unsupported skip` imports the rest of the file, and says what is missing then."""
    far = {"name": "far", "vhost": "/", "type": "x-federation-upstream"}
    words = (
        "--data-dir",
        str(tmp_path / "data"),
        str(written(tmp_path / "file.json", queues=[QUEUE], exchanges=[far])),
    )
    refused = definitions("import", *words)
    would, done = (
        definitions("import", "--on-unsupported", "skip", *more, *words) for more in (("--dry-run",), ())
    )

    assert (65, 1, 0) == (refused.exit_code, would.exit_code, done.exit_code)
    assert "definitions.on_unsupported = skip" in refused.stderr
    line = "left out: exchanges[0] (name 'far', vhost '/'): unknown exchange type 'x-federation-upstream'\n"
    assert (True, True) == (line in would.stdout, line in done.stdout)
    assert ["q"] == [each["name"] for each in exported(tmp_path / "data")["queues"]]


def test_an_import_without_a_broker_starts_no_shovel(tmp_path, monkeypatch):
    """A shovel in the file, or of the data, is stored, and moves nothing before a broker runs."""
    monkeypatch.setattr(Shovels, "__init__", None)
    value = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "r"}
    shovel = {"vhost": "/", "component": "shovel", "name": "s", "value": value}
    file = written(tmp_path / "file.json", parameters=[shovel], queues=[QUEUE])
    done = [definitions("import", "--data-dir", str(tmp_path / "data"), str(file)) for _ in range(2)]

    assert [0, 0] == [each.exit_code for each in done], done
    assert [shovel] == exported(tmp_path / "data")["parameters"]


def test_an_export_is_for_its_owner(tmp_path):
    """The exported file can be read by its owner only, as it has the hashes, and can be imported elsewhere."""
    file = written(tmp_path / "file.json", users=[ANN])
    definitions("import", "--data-dir", str(tmp_path / "data"), str(file))
    out = tmp_path / "out.json"
    done = definitions("export", "--data-dir", str(tmp_path / "data"), str(out))
    again = definitions("import", "--data-dir", str(tmp_path / "other"), str(out))

    assert (0, 0) == (done.exit_code, again.exit_code)
    assert 0o600 == out.stat().st_mode & 0o777
    assert json.loads(out.read_bytes()) == exported(tmp_path / "other")


def test_what_cannot_be_imported(tmp_path):
    """A missing file ends with 66, a faulty one with 65, and nothing of it is imported."""
    file = written(tmp_path / "file.json", users=[ANN], queues=[QUEUE | {"vhost": "v"}])
    data_dir = str(tmp_path / "data")
    missing = definitions("import", "--data-dir", data_dir, str(tmp_path / "nope.json"))
    wrong = definitions("import", "--data-dir", data_dir, str(file))

    assert (66, f"leveret: file not found: {tmp_path}/nope.json\n") == (missing.exit_code, missing.stderr)
    assert 65 == wrong.exit_code
    assert (
        f"leveret: cannot import definitions {file}: queues[0] (name 'q', vhost 'v'): "
        "Virtual host 'v' does not exist\n"
    ) == wrong.stderr
    assert ["guest"] == [each["name"] for each in exported(tmp_path / "data")["users"]]


def test_a_dry_run_without_a_broker(tmp_path):
    """It is compared with the stored definitions, or those of a first start, and ends with 0, 1 or 65."""
    data_dir = tmp_path / "data"
    file = written(tmp_path / "file.json", users=[ANN], queues=[QUEUE])
    wrong = written(tmp_path / "wrong.json", queues=[QUEUE | {"vhost": "v"}, QUEUE | {"name": ""}])
    words = ("import", "--dry-run", "--data-dir", str(data_dir))
    before = definitions(*words, str(file))
    was_there = data_dir.exists()
    done = definitions("import", "--data-dir", str(data_dir), str(file))
    stored = exported(data_dir)
    same = definitions(*words, str(file))
    changed = definitions(
        *words, "--formatter", "json", str(written(tmp_path / "more.json", users=[ANN | {"tags": []}]))
    )
    refused = definitions(*words, str(wrong))
    no_json = definitions(*words, str(Path(__file__)))

    assert (1, False, 0, 0) == (before.exit_code, was_there, done.exit_code, same.exit_code)
    assert "added: queues[0] (name 'q', vhost '/')\nDry run: nothing was changed.\n" in before.stdout
    assert "Imported: users: 1 added; queues: 1 added\n" == done.stdout
    assert same.stdout.endswith("Dry run: nothing would change.\n")
    assert ["users", "", "0", "0", "1", "0", "0", "0", "0"] == [
        "users",
        "",
        *same.stdout.split("\n")[1].split()[1:],
    ]
    (change,) = json.loads(changed.stdout)["changes"]
    assert (1, [{"key": "tags", "before": ["management"], "after": []}]) == (
        changed.exit_code,
        change["differences"],
    )
    assert 65 == refused.exit_code == no_json.exit_code
    assert [
        "refused: queues[0] (name 'q', vhost 'v'): Virtual host 'v' does not exist",
        "refused: queues[1] (name '', vhost '/'): queue name cannot be empty",
        "Dry run: nothing of this can be imported.",
    ] == refused.stdout.splitlines()[-3:]
    assert f"leveret: cannot import definitions {__file__}: the file is not a JSON object" in no_json.stderr
    assert stored == exported(data_dir)


def test_what_cannot_be_exported(tmp_path):
    """An export without data ends with 65, and with 73 if the file cannot be written."""
    nothing = definitions("export", "--data-dir", str(tmp_path / "data"))
    definitions("import", "--data-dir", str(tmp_path / "data"), str(written(tmp_path / "file.json")))
    nowhere = definitions("export", "--data-dir", str(tmp_path / "data"), str(tmp_path / "no" / "file"))

    assert (65, f"leveret: there is no data in {tmp_path}/data\n") == (nothing.exit_code, nothing.stderr)
    assert (73, f"leveret: cannot write {tmp_path}/no/file: No such file or directory\n") == (
        nowhere.exit_code,
        nowhere.stderr,
    )


def test_beside_a_broker_at_work(tmp_path):
    """Definitions of a running broker can be exported, and imported into it at once, entirely or not at all."""
    file = written(tmp_path / "file.json", users=[ANN])
    faulty = written(
        tmp_path / "faulty.json", users=[ANN | {"name": "bob"}], permissions=[RIGHTS | {"vhost": "none"}]
    )
    with Running(tmp_path) as broker:
        broker.wait_for("startup complete")
        host, port = broker.address
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            connection.channel().queue_declare("made meanwhile", durable=True)
        found = exported(broker.data_dir)
        would = definitions("import", "--dry-run", "--data-dir", str(broker.data_dir), str(file))
        done = definitions("import", "--data-dir", str(broker.data_dir), str(file))
        refused = definitions("import", "--data-dir", str(broker.data_dir), str(faulty))
        users = {each["name"] for each in exported(broker.data_dir)["users"]}
        (broker.data_dir / "ctl.sock").unlink()
        locked = definitions("import", "--data-dir", str(broker.data_dir), str(file))

        assert ["made meanwhile"] == [each["name"] for each in found["queues"]]
        assert (0, 65, 73) == (done.exit_code, refused.exit_code, locked.exit_code)
        assert (1, "Imported: users: 1 added\n") == (would.exit_code, done.stdout)
        assert "Dry run: nothing was changed." in would.stdout
        assert "permissions[0]" in refused.stderr
        assert {"ann", "guest"} == users
        assert f"another broker is using it, process {broker.process.pid} on" in locked.stderr
        assert 0 == broker.stopped_by(signal.SIGTERM)[0]


def test_a_broker_that_starts_with_definitions(tmp_path):
    """Users log in over a socket with imported hashes; the default user is not created."""
    directory = tmp_path / "definitions"
    directory.mkdir()
    written(directory / "1.json", vhosts=[{"name": "/"}], users=[ANN])
    written(directory / "2.json", permissions=[RIGHTS], queues=[QUEUE])
    (directory / "notes.txt").write_text("no definitions")
    with Running(tmp_path, "--set", f"load_definitions={directory}") as broker:
        broker.wait_for("startup complete")
        host, port = broker.address
        ann = pika.PlainCredentials("ann", "pw")
        with pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=ann)) as connection:
            assert 0 == connection.channel().queue_declare("q", passive=True).method.message_count
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(pika.ConnectionParameters(host, port))
        assert 0 == broker.stopped_by(signal.SIGTERM)[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "the file is not JSON"),
        ('{"users": [{"name": "ann"}]}', "users[0] (name 'ann'): Object missing required field `tags`"),
        (None, "cannot read definitions"),
    ],
)
def test_a_broker_that_cannot_load_its_definitions(tmp_path, content, text):
    """A broker whose definitions file is faulty does not start: one line on stderr, exit code 65."""
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    with Running(tmp_path, "--set", f"definitions.local.path={file}") as broker:
        _, err = broker.process.communicate(timeout=30)

    assert 65 == broker.process.returncode
    assert text in err
    assert 1 == len(err.splitlines())
