"""`leveret migrate check`: its verdict, what it lists, and the files that it writes."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leveret.broker.cli.main import main
from leveret.broker.config.config import load

CONF = """\
default_user = ada
default_pass = 'se#cret'
heartbeat = often
cluster_formation.classic_config.nodes.1 = rabbit@a
net_ticktime = 60
definitions.tls.verify = verify_peer
"""
QUEUE = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
DEFINITIONS = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": "ada", "password": "pw", "tags": "administrator"}],
    "exchanges": [QUEUE | {"name": "log", "type": "x-rtopic", "internal": False}],
    "queues": [QUEUE | {"name": "work"}],
    "bindings": [
        {"vhost": "/", "source": "log", "destination": "work", "destination_type": "queue", "routing_key": "#"}
    ],
}  # fmt: skip


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write files to the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERET_HEARTBEAT", "never")

    def write(**files: str) -> None:
        for name, text in files.items():
            Path(name.replace("__", ".").replace("_env", "-env")).write_text(text)

    return write


def check(*words: str) -> Result:
    """Run `leveret migrate check`."""
    return CliRunner().invoke(main, ["migrate", "check", *words])


def test_files_that_can_be_used_start(written):
    """The environment of the command does not count, and its files do."""
    written(
        rabbitmq__conf="heartbeat = 5\n",
        advanced__config="[{rabbit, [{frame_max, 8192}]}].",
        enabled_plugins="[rabbitmq_mqtt].",
    )
    done = check("rabbitmq.conf", "advanced.config", "enabled_plugins")

    assert (0, "Verdict: starts") == (done.exit_code, done.stdout.splitlines()[-1])
    assert "  heartbeat = 5     rabbitmq.conf:1" in done.stdout.splitlines()
    assert "  frame_max = 8192  advanced.config" in done.stdout.splitlines()
    assert "  there is no such plugin here:\n    enabled_plugins: rabbitmq_mqtt\n" in done.stdout


def test_what_is_refused_is_named_with_what_belongs_to_it(written):
    """Settings without effect are grouped by the reason; the last line is the verdict."""
    written(rabbitmq__conf=CONF, definitions__json=json.dumps(DEFINITIONS))
    done = check("rabbitmq.conf", "definitions.json")
    lines = done.stdout.splitlines()

    assert 78 == done.exit_code
    at = lines.index("Without effect")
    assert "  clustering is not supported; see `replication.url` for a log of several nodes:" == lines[at + 1]
    assert ["rabbitmq.conf:4: cluster_formation.classic_config.nodes.1", "rabbitmq.conf:5: net_ticktime"] == [
        line.strip() for line in lines[at + 2 : at + 4]
    ]
    assert "  default_pass = ***  rabbitmq.conf:2" in lines
    assert not any(line.startswith("  heartbeat = ") for line in lines)
    refused = lines[lines.index("Refused") + 1 :]
    assert ["rabbitmq.conf:3: heartbeat", "rabbitmq.conf:6: definitions.tls.verify"] == [
        line.strip().split(" = ")[0].split(" is ")[0] for line in refused[:2]
    ]
    assert "  bindings[0] (source 'log', destination 'work', vhost '/'): exchange 'log' is left out" in lines
    assert (
        "Verdict: does not start; problems of the configuration: 2; definitions that are refused: 1; "
        "what cannot exist here is left out with definitions.on_unsupported = skip"
    ) == lines[-1]


def test_the_files_that_it_writes_start(written):
    """They have what is obeyed and what can exist, secrets too, so only the owner can read them; each names its command."""
    written(rabbitmq__conf=CONF, definitions__json=json.dumps(DEFINITIONS))
    first = check("rabbitmq.conf", "definitions.json", "--write", "new")
    again = check("new/leveret.conf", "new/definitions.json")

    assert (78, 0) == (first.exit_code, again.exit_code)
    assert "Still refused" not in first.stdout
    assert [
        "Written: new/leveret.conf, for `leveret serve --config new/leveret.conf`",
        "Written: new/definitions.json, for `leveret ctl import_definitions new/definitions.json`",
        "With the written files: starts",
    ] == first.stdout.splitlines()[-4:-1]
    user = load([Path("new/leveret.conf")]).users[0]
    assert ("ada", "se#cret") == (user.name, user.password)
    kept = json.loads(Path("new/definitions.json").read_text())
    assert ["work"] == [each["name"] for each in kept["queues"]]
    assert "log" not in {each["name"] for each in kept["exchanges"]}
    assert {0o600} == {stat.S_IMODE(each.stat().st_mode) for each in Path("new").iterdir()}


def test_files_that_are_not_on_this_machine_are_a_condition(written):
    """Certificates of another machine do not decide about the verdict, and are part of it."""
    written(rabbitmq__conf="ssl_options.cacertfile = /nowhere/ca.pem\n")
    lines = check("rabbitmq.conf", "--write", "new").stdout.splitlines()

    assert "  ssl_options.cacertfile = /nowhere/ca.pem" in lines
    assert "With the written files: starts once the files that are needed are there" == lines[-2]
    assert "Verdict: starts once the files that are needed are there" == lines[-1]


def test_definitions_alone_decide_about_the_exit_code(written):
    """65: the configuration is right; with `definitions.on_unsupported = skip` it starts; what is invalid stays so."""
    wrong = DEFINITIONS | {"queues": [QUEUE | {"name": ""}]}
    written(
        skip__conf="definitions.on_unsupported = skip",
        a__json=json.dumps(DEFINITIONS),
        b__json=json.dumps(wrong),
    )

    assert [65, 0, 65, 65] == [
        check(*words).exit_code
        for words in (
            ("a.json",),
            ("skip.conf", "a.json"),
            ("skip.conf", "b.json"),
            ("b.json", "--write", "new"),
        )
    ]
    assert not Path("new/definitions.json").exists()
    Path("c.json").write_text("[")
    assert (65, True) == ((done := check("c.json")).exit_code, "c.json: the file is not JSON" in done.stderr)


@pytest.mark.parametrize("value", ["a", "a#b", "it's", "a $(b)", " c ", "two\nlines"])
def test_values_are_written_as_they_were_read(written, value):
    """Quotes keep what a file means something else by."""
    quoted = f"'''{value}'''" if "'" in value or "\n" in value else f"'{value}'"
    written(rabbitmq__conf=f"default_pass = {quoted}\n")
    check("rabbitmq.conf", "--write", "new")

    expected = load([Path("rabbitmq.conf")]).users[0].password
    assert expected == load([Path("new/leveret.conf")]).users[0].password
