"""`leveret ctl` against a running broker."""

import contextlib
import json
import os
import select
import stat
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result
from conformance.wire import Client
from processes.running import Running, serving

from leveret.broker import exit_codes
from leveret.broker.cli.ctl import cluster
from leveret.broker.cli.ctl.main import ctl

Ctl = Callable[..., Result]


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """A broker without an HTTP listener, in a directory whose path is longer than the address of a socket."""
    with serving(tmp_path_factory.mktemp("d" * 120)) as made:
        yield made


@pytest.fixture
def run(running) -> Ctl:
    def run(*arguments: str, **given: str) -> Result:
        return CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), *arguments], **given)

    return run


def test_only_the_owner_can_open_the_socket(running):
    """Its mode is 0600."""
    assert 0o600 == stat.S_IMODE((running.data_dir / "ctl.sock").stat().st_mode)


def test_the_status_names_process_and_system(run):
    """So that an administrator knows what to look at on the host."""
    shown = run("status").stdout.splitlines()

    assert f"OS: {os.uname().sysname}" in shown
    assert [line for line in shown if line.startswith("OS PID: ") and line[8:].isdigit()]


def test_a_virtual_host_without_limits_has_an_empty_line(run):
    """As RabbitMQ prints it, and Ansible expects it."""
    assert "\n" == run("-q", "list_vhost_limits").stdout
    assert 0 == run("set_vhost_limits", '{"max-queues": 1000}').exit_code
    assert '{"max-queues":1000}\n' == run("-q", "list_vhost_limits").stdout
    assert 0 == run("clear_vhost_limits").exit_code


def test_a_vhost_is_protected_from_deletion(run):
    """Until the protection is removed."""
    run("add_vhost", "kept")
    protected = run("enable_vhost_deletion_protection", "kept")
    refused = run("delete_vhost", "kept")
    listed = run("-s", "list_vhosts", "name", "protected_from_deletion")

    assert (0, exit_codes.UNAVAILABLE) == (protected.exit_code, refused.exit_code)
    assert "because it is protected from deletion" in refused.stderr
    assert "kept\ttrue" in listed.stdout.splitlines()
    assert 0 == run("disable_vhost_deletion_protection", "kept").exit_code
    assert 0 == run("delete_vhost", "kept").exit_code
    assert exit_codes.DATA == run("enable_vhost_deletion_protection", "kept").exit_code


def vhost_metadata(run, name: str) -> str:
    """The description, tags, default queue type and protection of a virtual host."""
    columns = ("description", "tags", "default_queue_type", "protected_from_deletion")
    rows = json.loads(run("list_vhosts", "name", *columns, "--formatter", "json").stdout)
    return next([row[each] for each in columns] for row in rows if row["name"] == name)


def test_metadata_of_a_vhost_are_changed_one_by_one(run):
    """Other metadata stay, also with set_vhost_tags and the tracing."""
    run("add_vhost", "shop", "--description", "the shop", "--default-queue-type", "quorum")
    assert 0 == run("update_vhost_metadata", "shop", "--tags", "a,b").exit_code
    assert ["the shop", ["a", "b"], "quorum", False] == vhost_metadata(run, "shop")
    assert 0 == run("set_vhost_tags", "shop", "c").exit_code
    assert 0 == run("trace_on", "-p", "shop").exit_code
    assert 0 == run("update_vhost_metadata", "shop", "--protected-from-deletion").exit_code
    assert ["the shop", ["c"], "quorum", True] == vhost_metadata(run, "shop")
    words = ("--no-protected-from-deletion", "--description", "x", "--default-queue-type", "classic")
    assert 0 == run("update_vhost_metadata", "shop", *words).exit_code
    assert ["x", ["c"], "classic", False] == vhost_metadata(run, "shop")

    for words, code, text in (
        (("shop",), 64, "not enough arguments"),
        (("nope", "--description", "x"), 65, "Virtual host 'nope' does not exist"),
        (("shop", "--default-queue-type", "odd"), 65, "Default queue type must be one of"),
    ):
        refused = run("update_vhost_metadata", *words)
        assert (code, True) == (refused.exit_code, text in refused.stderr), refused.stderr
    run("delete_vhost", "shop")


def test_a_user_is_added_with_the_hash_of_a_password(run):
    """The password itself is in no script, and the output of hash_password is the hash alone."""
    hashed = run("-q", "hash_password", "secret").stdout.strip()
    assert 0 == run("add_user", "hashed", hashed, "--pre-hashed-password").exit_code
    assert 0 == run("authenticate_user", "hashed", "secret").exit_code
    assert 0 == run("add_user", "read", "--pre-hashed-password", input=f"{hashed}\n").exit_code
    refused = run("add_user", "other", "secret!", "--pre-hashed-password")

    assert (exit_codes.DATA, True) == (refused.exit_code, "Could not Base64 decode" in refused.stderr)
    assert "secret" not in run("hash_password", "secret").stdout


def test_permissions_are_given_in_all_vhosts(run):
    """A user who does not exist is an error with RabbitMQ's exit code."""
    run("add_vhost", "one")
    run("add_user", "everywhere", "pw")
    assert 0 == run("set_permissions_globally", "everywhere", "", "", ".*").exit_code
    listed = run("-s", "list_user_permissions", "everywhere").stdout.splitlines()
    run("delete_vhost", "one")

    assert {"/\t\t\t.*", "one\t\t\t.*"} <= set(listed)
    assert exit_codes.NO_USER == run("set_permissions_globally", "nobody", "", "", "").exit_code


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--version",), "3.13.7"),
        (("check_if_any_deprecated_features_are_used",), "Cluster reported no deprecated features in use"),
        (("check_if_metadata_store_is_initialized",), "has completed its initialization"),
        (("check_if_metadata_store_is_initialized_with_data",), "has completed its initialization"),
        (("has_reached_target_cluster_size",), "Target cluster size has been reached"),
        (("check_for_quorum_queues_without_an_elected_leader", ".*"), "matching '.*' in vhost /"),
        (
            ("check_for_quorum_queues_without_an_elected_leader", ".*", "--across-all-vhosts"),
            "reported all quorum queue as having responsive leader replicas",
        ),
        (("list_deprecated_features", "name", "state"), "global_qos\tpermitted"),
        (("list_deprecated_features", "--used"), "Listing deprecated features in use ..."),
    ],
)
def test_commands_of_rabbitmq_4_that_scripts_use(run, words, text):
    """Checks of what cannot be otherwise here pass, in RabbitMQ's words."""
    done = run(*words)

    assert (0, True) == (done.exit_code, text in done.stdout), done.output


def test_a_deprecated_feature_in_use_fails_its_check(run):
    """A transient queue that is not exclusive is named, with RabbitMQ's exit code, until it is gone."""
    queue = {"name": "replies", "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
    assert 0 == run("import_definitions", "-", input=json.dumps({"queues": [queue]})).exit_code
    used = run("check_if_any_deprecated_features_are_used")
    run("delete_queue", "replies")

    assert exit_codes.UNAVAILABLE == used.exit_code
    assert "transient_nonexcl_queues" in used.stderr
    assert 0 == run("check_if_any_deprecated_features_are_used").exit_code


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
        (("set_disk_free_limit", "much"), exit_codes.DATA, "no size"),
        (("set_log_level", "loud"), exit_codes.UNAVAILABLE, "level must be one of"),
        (
            ("set_log_level", "debug", "connectio"),
            exit_codes.UNAVAILABLE,
            "category must be default or one of channel,",
        ),
        (
            ("add_vhost", "v", "--default-queue-type", "nope"),
            exit_codes.UNAVAILABLE,
            "Unsupported default queue type",
        ),
        (("list_parameters", "-p", "nope"), exit_codes.DATA, "Virtual host 'nope' does not exist"),
        (("list_policies", "-p", "nope"), exit_codes.DATA, "Virtual host 'nope' does not exist"),
        (("list_operator_policies", "-p", "nope"), exit_codes.DATA, "Virtual host 'nope' does not exist"),
        (("list_vhost_limits", "-p", "nope"), exit_codes.DATA, "Virtual host 'nope' does not exist"),
        (("list_users", "--uri", "ftp://x"), exit_codes.USAGE, "exclude each other"),
    ],
)
def test_a_wrong_argument_is_told_with_its_exit_code(run, arguments, code, text):
    """As RabbitMQ's tools do."""
    result = run(*arguments)

    assert code == result.exit_code
    assert text in result.stderr


def test_queues_of_a_mistyped_vhost_are_none_with_a_warning(run):
    """The exit code is 0, as RabbitMQ's; the warning has the nearest name."""
    assert 0 == run("add_vhost", "shopping").exit_code
    result = run("list_queues", "-p", "shoping")
    assert 0 == run("delete_vhost", "shopping").exit_code

    assert 0 == result.exit_code
    assert "Warning: virtual host 'shoping' does not exist; did you mean 'shopping'?" in result.stderr


def test_a_node_that_is_away_is_a_problem():
    """Of the cluster, beside what the broker tells."""
    member = {"address": "a:1", "lag_batches": 0, "silent_seconds": 70.2}
    state = {
        **dict.fromkeys(("node", "role", "log", "epoch", "last", "applied"), ""),
        "leader": None,
        "lag_seconds": 0.0,
        "members": [{**member, "name": "one", "is_up": True}, {**member, "name": "two", "is_up": False}],
        "problems": ["the copy is behind"],
    }
    lines = list(cluster._nodes(state))

    assert ["Problems", "", " * the copy is behind", " * node two was not seen for 70 s"] == lines[-4:]
    assert "(none)" == list(cluster._nodes({**state, "members": [], "problems": []}))[-1]


def test_a_broker_that_does_not_run_is_named(tmp_path):
    """The error says which directory was meant, and what to do."""
    absent = CliRunner().invoke(ctl, ["ping", "--data-dir", str(tmp_path / "none")])
    stopped = CliRunner().invoke(ctl, ["ping", "--data-dir", str(tmp_path)])

    assert (exit_codes.UNAVAILABLE, exit_codes.UNAVAILABLE) == (absent.exit_code, stopped.exit_code)
    assert "the directory does not exist" in absent.stderr
    assert "it is not running; start it with `leveret serve`" in stopped.stderr


def test_the_broker_is_stopped(tmp_path):
    """`stop` ends the process as SIGTERM does, and the socket is removed."""
    with serving(tmp_path) as running:
        asked = CliRunner().invoke(ctl, ["rotate_logs", "--data-dir", str(running.data_dir)])
        stopped = CliRunner().invoke(ctl, ["stop", "--data-dir", str(running.data_dir)])
        running.process.wait(60)

    assert (asked.exit_code, stopped.exit_code) == (0, 0)
    assert not (running.data_dir / "ctl.sock").exists()


def test_the_firehose_is_switched(run):
    """`trace_on` and `trace_off` say what RabbitMQ's say, keep what is known of the virtual host, and are listed."""
    run("add_vhost", "traced", "--description", "d", "--tags", "a,b")
    on = run("trace_on", "-p", "traced")
    listed = run("-s", "list_vhosts", "name", "tracing", "description")
    off = run("--quiet", "trace_off", "-p", "traced")

    text = 'Starting tracing for vhost "traced" ...\nTrace enabled for vhost traced\n'
    assert (0, text) == (on.exit_code, on.stdout)
    assert "traced\ttrue\td" in listed.stdout.splitlines()
    assert (0, "Trace disabled for vhost traced\n") == (off.exit_code, off.stdout)
    assert (
        "traced\tfalse\td" in run("-s", "list_vhosts", "name", "tracing", "description").stdout.splitlines()
    )
    assert exit_codes.DATA == run("trace_on", "-p", "none").exit_code
    run("delete_vhost", "traced")


def test_so_many_connections_are_closed(run, running):
    """`--limit` closes at most so many; the others stay."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(Client(running.address).login().socket) for _ in range(3)]
        closed = run("close_all_connections", "--limit", "2", "enough")
        readable, _, _ = select.select(sockets, (), (), 30)

    assert [
        "Closing 2 connections in vhost /, reason: enough...",
        "Closed 2 connections",
    ] == closed.stdout.splitlines()
    assert 1 <= len(readable) <= 2
    for limit in ("x", "-1"):
        assert 64 == run("close_all_connections", "--limit", limit, "bye").exit_code


def test_a_report_has_everything_in_the_order_of_rabbitmq(run):
    """Status, settings and clients, then the objects of each virtual host; `--quiet` and formats change nothing."""
    run("add_vhost", "shop")
    done = run("--formatter", "json", "report")
    vhosts = [
        line
        for vhost in ("/", "shop")
        for line in (
            f"Listing queues for vhost {vhost} ...",
            f"Listing exchanges for vhost {vhost} ...",
            f"Listing bindings for vhost {vhost}...",
            f'Listing permissions for vhost "{vhost}" ...',
            f'Listing policies for vhost "{vhost}" ...',
            "Listing global runtime parameters ...",
            f'Listing runtime parameters for vhost "{vhost}" ...',
        )
    ]
    first = [
        "Reporting server status",
        "Status of node",
        "Cluster status of node",
        "Application environment of node",
    ]
    lines = done.stdout.splitlines()
    headings = [line for line in lines if line.startswith((*first, "Listing "))]
    run("delete_vhost", "shop")

    assert 0 == done.exit_code
    assert all(line.startswith(start) for line, start in zip(headings, first, strict=False))
    assert ["Listing connections ...", "Listing channels ...", *vhosts] == headings[4:]
    assert any(line.startswith("name\ttype\tdurable\t") for line in lines)


def test_shovels_are_deleted_by_one_command(run):
    """Several names in one virtual host: a migration has one for each queue."""
    value = '{"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}'
    for name in ("one", "two", "three"):
        assert 0 == run("set_parameter", "shovel", name, value).exit_code

    deleted = run("delete_shovel", "one", "three")

    assert 0 == deleted.exit_code, deleted.output
    listed = run("-s", "list_parameters").stdout.splitlines()
    assert ["two"] == [line.split("\t")[1] for line in listed if line.startswith("shovel")]
    assert 0 == run("delete_shovel", "two").exit_code
    assert exit_codes.UNAVAILABLE == run("delete_shovel", "two").exit_code
