"""SEC-24 and SEC-26 to SEC-28: exposure of secrets and names, and effects of text from outside (docs/security.md)."""

import io
import json
import logging
import signal
import subprocess

import msgspec
import pytest
from conformance.wire import Client as WireClient
from doubles.fakes import Client, Node
from processes.running import finished, serving

from leveret.broker import exit_codes
from leveret.broker.administration import BadRequestError
from leveret.broker.amqp.commands import Queue, make
from leveret.broker.config.config import ConfigError, effective, load
from leveret.broker.config.keys import KEYS
from leveret.broker.process import logs
from leveret.broker.vhost.parameter_checks import MAX_DEPTH

SECRET = "s3cret-canary"


def run(tmp_path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the broker that ends by itself."""
    return finished(*arguments, cwd=tmp_path, seconds=60)


# -- SEC-26: secrets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [f"default_pass {SECRET}", f"default_pass:{SECRET} = x", f"default_users.a.pasword {SECRET}"]
)
def test_sec_26_configuration_errors_show_no_passwords(tmp_path, line):
    """A broken line of a file or a flag ends with exit code 78 and its place, not with its text."""
    (tmp_path / "a.conf").write_text(line + "\n")
    for done in (
        run(tmp_path, "serve", "--config", "a.conf"),
        run(tmp_path, "serve", "--set", line.replace(" = x", "")),
    ):
        assert exit_codes.CONFIG == done.returncode
        assert SECRET not in done.stdout + done.stderr
        assert "a.conf:1: " in done.stderr or "--set (number 1): expected KEY=VALUE" in done.stderr


def test_sec_26_passwords_are_in_no_output(tmp_path):
    """Passwords are not in clear in the log at its most talkative level, nor the store, nor in `leveret config`."""
    (tmp_path / "a.conf").write_text(f"default_pass = {SECRET}\nlog.console.level = debug\n")
    with serving(tmp_path, "--config", "a.conf") as running:
        WireClient(running.address).login(password=SECRET).close_socket()
        _, out, err = running.stopped_by(signal.SIGTERM)
    shown = run(tmp_path, "config", "--config", "a.conf")
    stored = b"".join(path.read_bytes() for path in running.data_dir.rglob("*") if path.is_file())

    assert "user 'guest' authenticated" in out
    assert SECRET not in out + err + shown.stdout + shown.stderr
    assert "default_pass = ***" in shown.stdout
    assert SECRET.encode() not in stored


def test_sec_26_data_are_for_their_owner(tmp_path):
    """Data are readable by their owner alone, with any umask: hashes and messages; a lock leads nowhere else."""
    with serving(tmp_path, before=("/bin/sh", "-c", 'umask 000 && exec "$@"', "sh")) as running:
        channel = WireClient(running.address).login().channel()
        channel.queue("q", durable=True)
        channel.put("q", bytes(5_000_000), delivery_mode=2)
        modes = {
            path: path.stat().st_mode & 0o777 for path in (running.data_dir, *running.data_dir.rglob("*"))
        }
    target = tmp_path / "target"
    target.write_text("kept")
    lock = tmp_path / "other" / "leveret.lock"
    lock.parent.mkdir()
    lock.symlink_to(target)
    done = run(tmp_path, "serve", "--data-dir", str(lock.parent), "--set", "listeners.tcp.1=127.0.0.1:0")

    assert len(modes) > 3
    assert {} == {path: oct(mode) for path, mode in modes.items() if mode & 0o077}
    assert (exit_codes.CANNOT_CREATE, "kept") == (done.returncode, target.read_text())


# -- SEC-28: what text of clients does to a log -----------------------------------------------------------------------


@pytest.mark.parametrize("formatter", ["plaintext", "json"])
def test_sec_28_names_cannot_forge_lines(request, formatter):
    """Line ends, control characters and characters that turn text round are escaped in both forms of a log."""
    stream = io.StringIO()
    name = f"leveret-{request.node.name}"
    configured = logs.configure([logs.Output(stream=stream, formatter=formatter)], {}, name)
    text = "user '\r\n2026-01-01 [info] \x1b[2K\x85\u2028\u202e\u2066\u200b\ufeff\U000e0041'"
    logging.getLogger(name).error("login refused: %s", text)
    configured.close()
    written = stream.getvalue()

    assert 1 == len(written.splitlines())
    assert written.isprintable() or written[:-1].isprintable()
    if formatter == "json":
        assert text in json.loads(written)["msg"]


# -- SEC-24: names and files; definitions that are nested -------------------------------------------------------------


def test_sec_24_names_make_no_paths(tmp_path):
    """A virtual host or queue that is named like a path leaves nothing outside of the data directory."""
    names = ("../../outside", "/etc/outside", "a/../../outside", "..")
    (tmp_path / "d.json").write_bytes(
        msgspec.json.encode(
            {
                "vhosts": [{"name": name} for name in names],
                "queues": [{"vhost": name, "name": name, "durable": True} for name in names],
            }
        )
    )
    done = run(tmp_path, "definitions", "import", "--data-dir", str(tmp_path / "deep" / "data"), "d.json")

    assert (0, "") == (done.returncode, done.stderr)
    assert {"d.json", "deep"} == {path.name for path in tmp_path.iterdir()}
    assert ["data"] == [path.name for path in (tmp_path / "deep").iterdir()]
    assert [] == list(tmp_path.rglob("*outside*"))


def nested(depth: int) -> bytes:
    """A definitions file with a parameter that has arrays in each other; of depth 1 it is an empty one."""
    return b'{"global_parameters":[{"name":"deep","value":' + b"[" * depth + b"]" * depth + b"}]}"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 5000, 120_000])
def test_nested_definitions_are_an_error_with_a_text(tmp_path, depth):
    """A file whose objects are nested too deeply, to any depth, ends with exit code 65 and a line that says so."""
    (tmp_path / "d.json").write_bytes(nested(depth))
    done = run(tmp_path, "definitions", "import", "--data-dir", str(tmp_path / "data"), "d.json")

    assert exit_codes.DATA == done.returncode
    assert 1 == len(done.stderr.splitlines())
    assert f"is nested deeper than {MAX_DEPTH} levels" in done.stderr


def test_nested_values_are_refused_by_the_service_layer():
    """Definitions, parameters, policies, limits and arguments that are nested too deeply are errors, not crashes."""
    node = Node()
    service = node.administration
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    operations = (
        lambda: service.definitions.import_file(None, nested(5000)),
        lambda: service.policies.set_global_parameter(None, "g", deep),
        lambda: service.policies.set_parameter(None, "/", "vhost-limits", "limits", {"max-queues": deep}),
        lambda: service.policies.set_parameter(None, "/", "operator_policy", "o", deep),
        lambda: service.policies.set(None, "/", "p", {"pattern": "", "definition": {"max-length": deep}}),
        lambda: service.users.set_limits(None, "guest", {"max-connections": deep}),
        lambda: service.topology.declare_queue(None, "/", "q", arguments={"x-max-length": deep}),
    )
    for operation in operations:
        with pytest.raises(BadRequestError, match=f"nested deeper than {MAX_DEPTH}"):
            operation()
    assert ["1 queue.declare-ok queue=q"] == Client(node).ask(
        make(Queue.Declare, 0, "q", False, False, False, False, False, {})
    )


def test_what_is_nested_to_the_limit_is_taken():
    """A value of the greatest depth is kept, exported and imported again."""
    node = Node()
    node.administration.definitions.import_file(None, nested(MAX_DEPTH - 1))
    exported = node.administration.definitions.export_file(None)

    assert nested(MAX_DEPTH - 1)[48:60] in exported.replace(b"\n", b"").replace(b" ", b"")
    node.administration.definitions.import_file(None, exported)


@pytest.mark.parametrize("key", [key for key in KEYS if key.secret], ids=lambda key: key.name)
def test_sec_26_the_effective_configuration_has_no_secret(key):
    """No value of a secret key is in it, whatever part of the configuration it belongs to, or in an error."""
    ldap = {
        "auth_backends.1": "ldap",
        "auth_ldap.servers.1": "ldap.test",
        "auth_ldap.use_ssl": "true",
        "auth_ldap.queries.vhost_access": "{constant, true}",
        "auth_ldap.queries.resource_access": "{constant, true}",
        "auth_ldap.other_bind.user_dn": "cn=broker",
        "auth_ldap.dn_lookup_bind.user_dn": "cn=broker",
    }
    values = ldap if key.name.startswith("auth_ldap") else {}
    settings = [
        f"{name}={value}" for name, value in (values | {key.name.replace("$name", "x"): SECRET}).items()
    ]
    try:
        lines = list(effective(load(settings=settings)))
    except ConfigError as error:
        lines = list(error.problems)

    assert SECRET not in "\n".join(lines)
