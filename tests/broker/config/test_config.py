"""The configuration: syntax, values, precedence, messages."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from leveret.broker.config.config import (
    Config,
    ConfigError,
    Listener,
    PrometheusConfig,
    TopicPermissionConfig,
    UserConfig,
    effective,
    judge_settings,
    load,
)
from leveret.broker.config.keys import KEYS
from leveret.broker.config.rabbitmq import FOREIGN
from leveret.broker.config.values import PARSERS, parse_line, read_file
from leveret.broker.config_key import Key
from leveret.broker.process.resource_alarms import disk_limit, memory_limit, total_memory

ALL = (".*", ".*", ".*")


def config_of(tmp_path: Path, text: str, **environ: str) -> Config:
    """Return the configuration of a file with ``text``."""
    path = tmp_path / "rabbitmq.conf"
    path.write_text(text)
    return load([path], environ=environ)


def problems_of(*settings: str, **environ: str) -> tuple[str, ...]:
    """Return the errors of ``--set`` for each of ``settings``."""
    with pytest.raises(ConfigError) as caught:
        load(settings=settings, environ=environ)
    return caught.value.problems


def test_nothing_configured_is_the_defaults():
    """Loading no files gives Config(), which has RabbitMQ 3.13's defaults on loopback."""
    config = load()

    assert Config() == config
    assert (Listener("127.0.0.1", 5672),) == config.listeners
    assert (131072, 8192, 2047, 60, 10.0) == (
        config.frame_max,
        config.initial_frame_max,
        config.channel_max,
        config.heartbeat,
        config.handshake_timeout,
    )
    assert (UserConfig("guest", "guest", ("administrator",), {"/": ALL}),) == config.users
    assert frozenset({"guest"}) == config.loopback_users
    assert (0.4, None, None, None) == (
        config.memory_relative,
        config.memory_absolute,
        config.disk_free_absolute,
        config.disk_free_relative,
    )
    assert (4096, 2048, 0.5) == (
        config.storage.embed_below,
        config.storage.segment,
        config.storage.paging_ratio,
    )
    assert (None, None, None) == (
        config.limits.connection_max,
        config.limits.channel_max_per_node,
        config.limits.consumer_max_per_channel,
    )


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.default and "$" not in key.name], ids=lambda key: key.name
)
def test_a_documented_default_changes_nothing(key):
    """A key set to its documented default gives the same configuration as leaving it out."""
    assert Config() == load(settings=[f"{key.name}={key.default}"])


@pytest.mark.parametrize("key", [key for key in KEYS if key.attribute], ids=lambda key: key.name)
def test_every_row_goes_somewhere(key):
    """Each attribute in the table exists in Config."""
    value = load(settings=["prometheus.ssl.certfile=/c.pem", "management.ssl.certfile=/c.pem"])
    for name in key.attribute.split("."):
        value = getattr(value, name)


def fields_of(section: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the fields of a class of settings and of its sections, and whether they state a key."""
    for name in section.__struct_fields__:
        form, *notes = get_args(section.__annotations__[name]) or (section.__annotations__[name],)
        if isinstance(form, type) and issubclass(form, msgspec.Struct) and not any(map(is_key, notes)):
            yield from fields_of(form, f"{path}{name}.")
        else:
            yield (
                f"{path}{name}",
                any(map(is_key, notes)) or path + name in {"prometheus.tls", "management.tls"},
            )


def is_key(note: object) -> bool:
    return isinstance(note, Key)


def test_every_field_states_its_key():
    """All but what follows from other fields."""
    without = {name for name, has_key in fields_of(Config) if not has_key}

    assert {
        "backends.cache.authz",
        "files",
        "management.has_plain",
        "management.usual_port",
        "prometheus.has_plain",
        "prometheus.usual_port",
        "tls.prefix",
        "warnings",
    } == without


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a.b = hello world # tail", "a.b", "hello world"),
        ("a.d=x#y", "a.d", "x"),
        ("  a =   12  ", "a", "12"),
        ("a = 'quo # ted' # tail", "a", "quo # ted"),
        ("a = ''", "a", ""),
        ("a = '$(HOME)'", "a", "$(HOME)"),
        ("a = it's", "a", "it's"),
        ("a = x=y", "a", "x=y"),
        ("a = $(HOME)/x-$(USER)", "a", "/home/me/x-me"),
        (r"limits.a\.b.max = 1", "limits.a.b.max", "1"),
        ("a./.ü = ß", "a./.ü", "ß"),
    ],
)
def test_a_line_is_a_key_and_a_value(line, key, value):
    """Spaces, comments, quotes and references to the environment are read as RabbitMQ reads them."""
    setting = parse_line(line, "here", {"HOME": "/home/me", "USER": "me"})

    assert setting is not None
    assert (key, value) == (setting.key, setting.value)


@pytest.mark.parametrize("line", ["", "   ", "# a = b", "   # a = b"])
def test_blank_lines_and_comments_set_nothing(line):
    """A line without a setting is not an error."""
    assert parse_line(line, "here", {}) is None


@pytest.mark.parametrize("line", ["a", "= b", "a b = c", "a =", "a = # b", "a = $(NOPE)", "[{rabbit, []}]."])
def test_other_lines_are_errors(line):
    """A line that is neither a setting nor a comment is an error, as are unset variables and Erlang terms."""
    with pytest.raises(ValueError, match=r"expected 'key = value'|has no value|is not set"):
        parse_line(line, "here", {})


@given(st.text(max_size=60))
def test_any_line_is_read_or_refused(line):
    """A line makes the parser fail by ValueError only."""
    try:
        parse_line(line, "here", {})
    except ValueError:
        pass


@given(st.sampled_from(KEYS), st.text(max_size=30))
def test_any_value_is_parsed_or_refused(key, text):
    """A value makes a parser fail by ValueError only."""
    try:
        PARSERS[key.kind](text, key)
    except (ValueError, RuntimeError):
        pass


@pytest.mark.parametrize(
    ("setting", "attribute", "value"),
    [
        ("handshake_timeout=200ms", "handshake_timeout", 0.2),
        ("handshake_timeout=5000", "handshake_timeout", 5.0),
        ("handshake_timeout=1m", "handshake_timeout", 60.0),
        ("heartbeat=30", "heartbeat", 30),
        ("heartbeat=1m", "heartbeat", 60),
        ("heartbeat=0", "heartbeat", 0),
        ("auth.failure_delay=1.5s", "auth_failure_delay", 1.5),
        ("max_message_size=64MiB", "limits.max_message_size", 64 * 1024**2),
        ("max_message_size=64MB", "limits.max_message_size", 64 * 1024**2),
        ("max_message_size=1kB", "limits.max_message_size", 1024),
        ("max_message_size=1k", "limits.max_message_size", 1024),
        ("max_message_size=0.5k", "limits.max_message_size", 512),
        ("frame_max=0", "frame_max", 0),
        ("channel_max=0", "channel_max", 0),
        ("max_channels_per_connection=7", "channel_max", 7),
        ("connection_max=infinity", "limits.connection_max", None),
        ("connection_max=0", "limits.connection_max", 0),
        ("max_connections=9", "limits.connection_max", 9),
        ("consumer_max_per_channel=3", "limits.consumer_max_per_channel", 3),
        ("tcp_listen_options.nodelay=false", "nodelay", False),
        ("tcp_listen_options.sndbuf=64KiB", "sndbuf", 65536),
        ("cluster_name=hares", "cluster_name", "hares"),
        ("data_dir=/srv/hare", "data_dir", Path("/srv/hare")),
        ("auth_mechanisms.1=PLAIN", "auth_mechanisms", ("PLAIN",)),
        ("default_vhosts.1.name=a.b", "vhosts", ("/", "a.b")),
        ("disk_free_limit.absolute=2GB", "disk_free_absolute", 2_000_000_000),
        ("disk_free_limit.absolute=50MiB", "disk_free_absolute", 50 * 1024**2),
        ("disk_free_limit.absolute=50M", "disk_free_absolute", 50_000_000),
        ("disk_free_limit.absolute=1k", "disk_free_absolute", 1000),
        ("disk_free_limit.absolute=4Gi", "disk_free_absolute", 4 * 1024**3),
        ("disk_free_limit.absolute=2P", "disk_free_absolute", 2 * 10**15),
        ("max_message_size=1Mi", "limits.max_message_size", 1024**2),
        ("disk_free_limit.absolute=1kB", "disk_free_absolute", 1000),
        ("disk_free_limit.absolute=12345", "disk_free_absolute", 12345),
        ("disk_free_limit.relative=1.5", "disk_free_relative", 1.5),
        ("vm_memory_high_watermark.absolute=1GB", "memory_absolute", 1_000_000_000),
        ("vm_memory_high_watermark.absolute=1GiB", "memory_absolute", 1024**3),
        ("vm_memory_high_watermark.relative=0.6", "memory_relative", 0.6),
    ],
)
def test_a_value_is_read_in_its_unit(setting, attribute, value):
    """Durations, sizes, limits and the rest arrive as plain values in seconds and bytes."""
    assert value == attrgetter(attribute)(load(settings=[setting]))


@pytest.mark.parametrize(
    ("setting", "attribute", "value"),
    [
        ("queue_index_embed_msgs_below=1KB", "embed_below", 1024),
        ("queue_index_max_journal_entries=7", "max_journal_records", 7),
        ("queue_index_segment_entry_count=512", "segment", 512),
        ("msg_store_io_batch_size=4096", "io_batch", 4096),
        ("vm_memory_high_watermark_paging_ratio=0.75", "paging_ratio", 0.75),
        ("storage.blob_threshold=1MiB", "blob_threshold", 1024**2),
        ("storage.commit_interval=5ms", "commit_interval", 0.005),
        ("storage.ram_limit=64MiB", "ram_limit", 64 * 1024**2),
        ("storage.target_ram_count=1000", "target_ram_count", 1000),
        ("storage.target_ram_count=infinity", "target_ram_count", None),
        ("storage.garbage_fraction=1", "garbage_fraction", 1.0),
        ("storage.check_invariants=true", "check_invariants", True),
        ("storage.early_confirm=false", "early_confirm", False),
        ("storage.sync=false", "sync", False),
    ],
)
def test_storage_is_configured(setting, attribute, value):
    """RabbitMQ's keys about messages on disk, and ours, are in the part of the configuration that storage gets."""
    config = load(settings=[setting])

    assert value == getattr(config.storage, attribute)
    assert () == config.warnings


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("disk_free_limit.absolute=much", "size"),
        ("disk_free_limit.relative=-1", "from 0 to 1000"),
        ("vm_memory_high_watermark.relative=1.5", "from 0 to 1"),
        ("storage.garbage_fraction=half", "from 0 to 1"),
        ("heartbeat=200ms", "whole seconds"),
        ("heartbeat=70000", "at most 65535"),
        ("heartbeat=soon", "duration"),
        ("handshake_timeout=5 years", "duration"),
        ("frame_max=100", "0 or at least 4096"),
        ("frame_max=5XB", "size"),
        ("initial_frame_max=1024", "at least 4096"),
        ("max_message_size=1GiB", "at most"),
        ("channel_max=many", "whole number"),
        ("channel_max=65536", "at most 65535"),
        ("tcp_listen_options.nodelay=yes", "true or false"),
        ("listeners.tcp.1=nowhere", "host:port"),
        ("listeners.tcp.1=127.0.0.1:65536", "0 to 65535"),
        ("listeners.tcp.1=::z:5672", "must be port, host:port or"),
        ("listeners.tcp=some", "must be none"),
        ("auth_mechanisms.1=GSSAPI", "PLAIN, AMQPLAIN, EXTERNAL"),
        ("auth_mechanisms.1=RABBIT-CR-DEMO", "PLAIN, AMQPLAIN, EXTERNAL"),
        ("data_dir=~no-such-user/x", "of a user who has none"),
        ("log.file=~no-such-user/x", "of a user who has none"),
        ("log.audit.file=~no-such-user/x", "of a user who has none"),
        ("confirm.mode=eventually", "must be one of standard, consumer-ack, consumer-ack-light"),
        ("compatibility.global_qos=maybe", "permitted, ignored"),
        ("default_users.bob.tags=x", "default_users.bob.password is missing"),
        ("default_users.guest.password=x", "already the default user"),
        ("heartbeat", "KEY=VALUE"),
    ],
)
def test_a_bad_value_is_reported(setting, text):
    """A value that does not fit its key is refused with the values that would."""
    assert any(text in problem for problem in problems_of(setting))


def test_of_a_key_the_last_value_is_obeyed():
    """Each key is obeyed once; one whose last value is invalid, or that has no effect here, is not."""
    written = ["heartbeat=7", "heartbeat=8", "raft.x=1", "channel_max=5", "channel_max=x"]
    obeyed = judge_settings(settings=written).obeyed

    assert [("heartbeat", "8")] == [(each.key, each.value) for each in obeyed]


def test_all_problems_are_reported_at_once(tmp_path):
    """Every unreadable file, bad line, bad value and unknown key is reported, with its place."""
    path = tmp_path / "a.conf"
    path.write_text("heartbeat = x\nnonsense\nheartbit = 3\n")
    with pytest.raises(ConfigError) as caught:
        load([tmp_path / "missing.conf", path], settings=["frame_max=x"])

    problems = "\n".join(caught.value.problems)
    assert 5 == len(caught.value.problems)
    for text in (
        "missing.conf: No such file",
        f"{path}:1: heartbeat",
        f"{path}:2: expected",
        f"{path}:3: unknown",
    ):
        assert text in problems


@pytest.mark.parametrize(
    ("written", "closest"),
    [
        ("heartbit", "heartbeat"),
        ("listener.tcp.default", "listeners.tcp.default"),
        ("tcp_listen_options.backlgo", "tcp_listen_options.backlog"),
        ("log.consol.level", "log.console.level"),
        ("default_pas", "default_pass"),
        ("default_users.bob.pasword", "default_users.bob.password"),
    ],
)
def test_an_unknown_key_names_the_closest(written, closest):
    """A mistyped key is an error that names the key it was probably meant to be."""
    assert (f"--set: unknown key {written}; did you mean {closest}?",) == problems_of(f"{written}=1")


def test_an_unknown_key_like_nothing_is_still_an_error():
    """A key that resembles no other is refused without a guess."""
    assert ("--set: unknown key qqqqqqqqqqqqqqq",) == problems_of("qqqqqqqqqqqqqqq=1")


@pytest.mark.parametrize(
    "key",
    [
        "management.cors.allow_origins.1",
        "cluster_formation.dns.hostname",
        "disk_monitor_failure_retries",
        "log.queue.rotation.size",
        "msg_store_file_size_limit",
        "classic_queue.default_version",
        "mqtt.vhost",
        "definitions.skip_if_unchanged",
    ],
)
def test_a_key_for_later_is_a_warning(key):
    """A RabbitMQ key without an effect in this release is accepted, with a warning that names it."""
    config = load(settings=[f"{key}=1"])

    (warning,) = config.warnings
    assert warning.startswith(f"--set: {key} is not supported: ")
    assert warning.endswith("; ignored")


PROTECTING = (
    ("ssl_options.psk_identity", "x"),
    ("management.ssl.key.RSAPrivateKey", "x"),
    ("auth_ldap.ssl_options.crl_check", "peer"),
    ("auth_oauth2.https.peer_verification", "verify_none"),
    ("trust_store.directory", "/certs"),
    ("prometheus.authentication.enabled", "true"),
    ("default_policies.operator.1.max_length", "5"),
    ("ranch_connection_max", "5"),
)


@pytest.mark.parametrize(("key", "value"), PROTECTING)
def test_a_key_that_protects_and_has_no_effect_is_refused(key, value):
    """An ignored key of encryption, authentication or limits is an error that names it."""
    (problem,) = problems_of(f"{key}={value}")

    assert problem.startswith(f"--set: {key} is not supported: ")
    assert problem.endswith(". Remove it to run without it")


def test_values_that_ask_for_nothing_are_taken():
    """An ignored key is accepted silently if its value is what the broker does anyway."""
    config = load(
        settings=[
            "auth_backends.1=internal",
            "proxy_protocol=false",
            "password_hashing_module=rabbit_password_hashing_sha256",
            "credential_validator.validation_backend=rabbit_credential_validator_accept_everything",
            "listeners.ssl=none",
            "ssl_options=none",
            "prometheus.authentication.enabled=false",
            "ranch_connection_max=infinity",
            "reverse_dns_lookups=false",
            "log.syslog=false",
        ]
    )

    assert () == config.warnings


@pytest.mark.parametrize(
    "text",
    [
        "default_pass hunter2",
        "default_pass: hunter2",
        "default_pass:hunter2 = x",
        "hunter2",
        "default_pass = encrypted:hunter2",
        "= hunter2",
        "default_pass'hunter2' = hunter2",
    ],
)
def test_problems_show_no_passwords(tmp_path, text):
    """A malformed line or flag is reported without a value that may be a password."""
    path = tmp_path / "a.conf"
    path.write_text(f"# one\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load([path], settings=[text])

    assert "hunter2" not in str(caught.value)
    assert 2 == len(caught.value.problems)
    assert any(f"{path}:2: " in problem for problem in caught.value.problems)


def test_definitions_are_named_by_any_of_three_keys():
    """All of them are the files that are imported at each start."""
    for key in ("load_definitions", "definitions.local.path", "management.load_definitions"):
        assert Path("/d.json") == load(settings=[f"{key}=/d.json"]).definitions, key


def test_where_metrics_are_served():
    """The Prometheus listener has an address and a per-object mode; another address than the default is required."""
    assert [False, True, True] == [
        each.required for each in (PrometheusConfig(), PrometheusConfig(port=0), PrometheusConfig(host="::1"))
    ]
    assert PrometheusConfig() == load().prometheus
    assert PrometheusConfig(enabled=False) == load(settings=["prometheus.enabled=false"]).prometheus
    assert PrometheusConfig(port=0) == load(settings=["prometheus.tcp.port=0"]).prometheus
    settings = ["prometheus.tcp.ip=::1", "prometheus.return_per_object_metrics=true"]
    assert PrometheusConfig(host="::1", per_object=True) == load(settings=settings).prometheus


def test_a_consumer_timeout_is_silent():
    """A consumer timeout, or disabling it, is accepted without a warning."""
    for value, seconds in (("1800000", 1800.0), ("5s", 5.0), ("0", 0.0)):
        config = load(settings=[f"consumer_timeout={value}"])

        assert (seconds, ()) == (config.consumer_timeout, config.warnings)


def test_a_confirm_timeout_is_off_by_default():
    """Publishers wait without a limit unless confirm.timeout is set."""
    assert 0.0 == load().confirm_timeout
    assert 30.0 == load(settings=["confirm.timeout=30s"]).confirm_timeout


def test_no_supported_key_is_also_unsupported():
    """No key is both effective and listed as ignored, and none is listed twice."""
    foreign = [name for row in FOREIGN for name in row.keys]

    assert [] == [key.name for key in KEYS if key.name in foreign]
    assert len(foreign) == len(set(foreign))


def test_flags_win_over_environment_over_files_over_defaults(tmp_path):
    """The precedence is flags, environment, files, defaults; among files the later wins."""
    one, two = tmp_path / "1.conf", tmp_path / "2.conf"
    one.write_text("heartbeat = 1\nframe_max = 5000\nchannel_max = 1\n")
    two.write_text("heartbeat = 2\nframe_max = 6000\n")
    config = load(
        [one, two], settings=["heartbeat=4"], environ={"LEVERET_HEARTBEAT": "3", "LEVERET_FRAME_MAX": "7000"}
    )

    assert (4, 7000, 1, 131072 * 1024) == (
        config.heartbeat,
        config.frame_max,
        config.channel_max,
        config.limits.max_message_size,
    )


def test_a_directory_is_read_in_lexical_order(tmp_path):
    """A directory stands for its *.conf files, the last in lexical order winning."""
    (tmp_path / "20-b.conf").write_text("heartbeat = 20\n")
    (tmp_path / "10-a.conf").write_text("heartbeat = 10\nchannel_max = 5\n")
    (tmp_path / "30-c.txt").write_text("heartbeat = 30\n")
    config = load([tmp_path])

    assert (20, 5) == (config.heartbeat, config.channel_max)


@pytest.mark.parametrize(
    ("environ", "attribute", "value"),
    [
        ({"RABBITMQ_NODE_PORT": "5680"}, "listeners", (Listener("", 5680),)),
        ({"RABBITMQ_NODE_IP_ADDRESS": "::1"}, "listeners", (Listener("::1", 5672),)),
        (
            {"RABBITMQ_NODE_PORT": "0", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1"},
            "listeners",
            (Listener("127.0.0.1", 0),),
        ),
        ({"RABBITMQ_DEFAULT_VHOST": "v"}, "vhosts", ("v",)),
        (
            {"RABBITMQ_DEFAULT_USER": "u", "RABBITMQ_DEFAULT_PASS": "p"},
            "users",
            (UserConfig("u", "p", ("administrator",), {"/": ALL}),),
        ),
        ({"RABBITMQ_NODENAME": "hare@home"}, "node_name", "hare@home"),
        ({"RABBITMQ_NODENAME": "hare@home"}, "cluster_name", "hare@home"),
        ({"RABBITMQ_MNESIA_BASE": "/a", "RABBITMQ_MNESIA_DIR": "/a/b"}, "data_dir", Path("/a/b")),
        ({"LEVERET_CONFIRM_MODE": "consumer-ack"}, "confirm_mode", "consumer-ack"),
        ({"LEVERET_LISTENERS_TCP_1": "127.0.0.1:0"}, "listeners", (Listener("127.0.0.1", 0),)),
    ],
)
def test_the_environment_is_read(environ, attribute, value):
    """RabbitMQ's and our own environment variables have the effects of their keys."""
    assert value == getattr(load(environ=environ), attribute)


def test_the_environment_names_the_file(tmp_path):
    """RABBITMQ_CONFIG_FILE is read, with or without its ending, unless a file is given."""
    path = tmp_path / "rabbitmq.conf"
    path.write_text("heartbeat = 7\n")

    assert 7 == load(environ={"RABBITMQ_CONFIG_FILE": str(path)}).heartbeat
    assert (path,) == load(environ={"RABBITMQ_CONFIG_FILE": str(path)}).files
    assert 7 == load(environ={"RABBITMQ_CONFIG_FILE": str(tmp_path / "rabbitmq")}).heartbeat


@pytest.fixture
def parts(tmp_path):
    """A directory of files that each set another value; 99 is set in files that must not be read."""
    for name, value in (
        ("a.conf", 1), ("b10.conf", 3), ("b9.conf", 4), ("c.conf~", 99), ("z.txt", 99), (".hidden.conf", 2),
    ):  # fmt: skip
        (tmp_path / name).write_text(f"heartbeat = {value}\n")
    (tmp_path / "d.conf").mkdir()
    (tmp_path / "d.conf" / "e.conf").write_text("heartbeat = 99\n")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("", [".hidden", "a", "b10", "b9"]),
        ("*.conf", [".hidden", "a", "b10", "b9"]),
        ("b?.conf", ["b9"]),
        ("b[0-9]*.conf", ["b10", "b9"]),
        ("{b9,a}.conf", ["a", "b9"]),
        ("a.{conf,txt}", ["a"]),
        ("no*.conf", []),
    ],
)
def test_a_pattern_names_files(parts, pattern, read):
    """Files of a directory, or those that match RabbitMQ's patterns, are read in lexical order; none is no error."""
    problems = []
    found = list(read_file(parts / pattern, {}, problems))

    assert [] == problems
    assert read == list(dict.fromkeys(Path(setting.origin.rpartition(":")[0]).stem for setting in found))


def test_an_invalid_pattern_is_reported(tmp_path):
    """A pattern in the first part of a path is an error."""
    problems = []
    path = Path(f"{{{tmp_path},{tmp_path / 'more'}}}/*.conf")

    assert [] == list(read_file(path, {}, problems))
    assert problems[0].startswith(f"cannot read {path}: ")


def test_what_a_pattern_names_is_read_after_the_file(parts):
    """RABBITMQ_CONFIG_FILES adds to RABBITMQ_CONFIG_FILE, and wins."""
    (parts / "z.txt").rename(parts / "main.conf")
    named = {"RABBITMQ_CONFIG_FILE": str(parts / "main"), "RABBITMQ_CONFIG_FILES": str(parts / "[ab]*.conf")}

    assert 4 == load(environ=named).heartbeat
    assert 3 == load(environ=named | {"RABBITMQ_CONFIG_FILES": str(parts / "b10.conf")}).heartbeat
    assert 1 == load([parts / "a.conf"], environ=named).heartbeat


def test_a_directory_that_looks_like_a_pattern_is_one(tmp_path):
    """A directory whose name looks like a pattern is read under its name."""
    odd = tmp_path / "{a,b}[c]*"
    odd.mkdir()
    (odd / "x.conf").write_text("heartbeat = 7\n")

    assert 7 == load([odd]).heartbeat
    assert 7 == load([odd / "x.conf"]).heartbeat


def test_an_unknown_variable_of_ours_is_a_warning():
    """A variable with our prefix that is not a key does not stop the start: container platforms set such names."""
    config = load(environ={"LEVERET_SERVICE_HOST": "10.0.0.1", "HOME": "/home/me"})

    assert (
        "environment variable LEVERET_SERVICE_HOST does not match any configuration key; ignored",
    ) == config.warnings


def test_logs_to_console_or_file(tmp_path):
    """RABBITMQ_LOGS is '-' for the console or a file; log.file is relative to log.dir or the data directory."""
    assert load(environ={"RABBITMQ_LOGS": "-"}, settings=[]).log.console
    assert tmp_path / "a.log" == load(environ={"RABBITMQ_LOGS": str(tmp_path / "a.log")}).log.file
    assert Path("/srv/log/a.log") == load(data_dir=Path("/srv"), settings=["log.file=a.log"]).log.file
    assert Path("/l/a.log") == load(settings=["log.file=a.log", "log.dir=/l"]).log.file
    assert {"queue": "debug"} == load(settings=["log.queue.level=debug"]).log.levels


def test_listeners_by_name():
    """Each name is a listener of its own; setting a name again replaces it, and none disables all."""
    three = load(settings=["listeners.tcp.1=1", "listeners.tcp.local=127.0.0.1:2", "listeners.tcp.6=[::1]:3"])

    assert (Listener("", 1), Listener("127.0.0.1", 2), Listener("::1", 3)) == three.listeners
    assert (Listener("::1", 3), Listener("::", 4)) == load(
        settings=["listeners.tcp.6=::1:3", "listeners.tcp.7=:::4"]
    ).listeners
    assert (Listener("", 2),) == load(settings=["listeners.tcp.1=1", "listeners.tcp.1=2"]).listeners
    assert () == load(settings=["listeners.tcp.1=1", "listeners.tcp=none"]).listeners
    assert ["1", "127.0.0.1:2", "[::1]:3"] == [str(listener) for listener in three.listeners]


def test_loopback_users():
    """The user guest is a loopback user unless said otherwise; others may be added; none clears them."""
    assert frozenset() == load(settings=["loopback_users=none"]).loopback_users
    assert frozenset() == load(settings=["loopback_users.guest=false"]).loopback_users
    assert frozenset({"guest", "bob"}) == load(settings=["loopback_users.bob=true"]).loopback_users


def test_users_and_virtual_hosts(tmp_path):
    """More users and virtual hosts can be configured; a user's permissions apply where its vhost_pattern matches."""
    config = config_of(
        tmp_path,
        """
        default_user = admin
        default_pass = 'se#cret'
        default_vhost = main
        default_user_tags.management = true
        default_permissions.write = ^$
        default_vhosts.1.name = /
        default_vhosts.2.name = team-a
        default_users.bob.password = bobs
        default_users.bob.tags = monitoring, management
        default_users.bob.vhost_pattern = ^team-
        default_users.bob.read = ^q
        default_users.eve.password = $(EVE)
        """,
        EVE="x",
    )

    assert ("main", "/", "team-a") == config.vhosts
    assert (
        UserConfig("admin", "se#cret", ("management",), {"main": (".*", "^$", ".*")}),
        UserConfig("bob", "bobs", ("monitoring", "management"), {"team-a": (".*", ".*", "^q")}),
        UserConfig("eve", "x", (), {"main": ALL}),
    ) == config.users


def test_a_bad_vhost_pattern_is_reported():
    """A pattern that is not a regular expression is an error, not a crash."""
    found = problems_of("default_users.bob.password=x", "default_users.bob.vhost_pattern=(")

    assert found[0].startswith("default_users.bob.vhost_pattern: ")


@pytest.mark.parametrize(
    "key",
    [
        *("default_permissions.configure", "default_permissions.read", "default_users.bob.write"),
        "default_topic_permissions.one.read",
    ],
)
def test_a_bad_permission_is_reported(key):
    """Each key of a permission that is not a regular expression is named."""
    found = problems_of(
        "default_users.bob.password=x", "default_topic_permissions.one.exchange=amq.topic", f"{key}=("
    )

    assert [f"{key}: invalid regular expression '('"] == [each.partition(": RE2")[0] for each in found]


def test_topic_permissions(tmp_path):
    """A row names an exchange; user and virtual host are the first ones and the patterns open unless set."""
    config = config_of(
        tmp_path,
        """
        default_user = admin
        default_vhosts.1.name = orders
        default_users.bob.password = x
        default_topic_permissions.1.exchange = amq.topic
        default_topic_permissions.of.bob.exchange = events
        default_topic_permissions.of.bob.user = bob
        default_topic_permissions.of.bob.vhost = orders
        default_topic_permissions.of.bob.write = ^{username}[.]
        default_topic_permissions.of.bob.read = ^all
        """,
    )

    assert (
        TopicPermissionConfig("admin", "/", "amq.topic", ".*", ".*"),
        TopicPermissionConfig("bob", "orders", "events", "^{username}[.]", "^all"),
    ) == config.topic_permissions


def test_topic_permissions_of_nobody_are_reported():
    """A row without an exchange, of an unknown user or in an unknown virtual host is an error with its key."""
    found = problems_of(
        "default_topic_permissions.1.write=x",
        "default_topic_permissions.2.exchange=e",
        "default_topic_permissions.2.user=bob",
        "default_topic_permissions.2.vhost=v",
    )

    assert (
        "default_topic_permissions.1.exchange is missing",
        "default_topic_permissions.2.user: there is no user bob",
        "default_topic_permissions.2.vhost: there is no virtual host v",
    ) == found


def test_limits_of_virtual_hosts_and_users():
    """Limits are kept by name, and names may hold dots and slashes."""
    config = load(
        settings=[
            "limits.vhost./.max_connections=5",
            "limits.vhost./.max_queues=6",
            "limits.vhost.a.b.max_queues=infinity",
            "limits.user.bob.max_channels=7",
        ]
    )

    assert (5, 6) == (
        config.limits.vhost_limits["/"].max_connections,
        config.limits.vhost_limits["/"].max_queues,
    )
    assert config.limits.vhost_limits["a.b"].max_queues is None
    assert (None, 7) == (
        config.limits.user_limits["bob"].max_connections,
        config.limits.user_limits["bob"].max_channels,
    )


def test_secrets_are_never_shown():
    """The effective configuration and all messages are free of passwords."""
    shown = "\n".join(effective(load(settings=["default_pass=hush1", "default_users.bob.password=hush2"])))

    assert "hush" not in shown
    assert '"***"' in shown


def test_the_audit_log_has_consistent_settings(tmp_path):
    """A date instead of a size, not both; a required log needs a file, which is relative to the directory of logs."""
    config = load(settings=["log.audit.file=a.log", "log.audit.rotation.date=$D0", f"log.dir={tmp_path}"])
    assert (tmp_path / "a.log", 0, "$D0") == (
        config.audit.file,
        config.audit.rotation_size,
        config.audit.rotation_date,
    )
    with pytest.raises(ConfigError) as caught:
        load(
            settings=[
                "log.audit.required=true",
            ]
        )
    assert ("log.audit.required is true, but log.audit.file names no file",) == caught.value.problems


def test_a_file_is_rotated_by_size_and_by_date():
    """As RabbitMQ does; with a date alone the audit log has no limit of size."""
    both = load(
        settings=[
            f"log.{file}.rotation.{key}" for file in ("file", "audit") for key in ("date=$D0", "size=1MB")
        ]
    )
    date = load(settings=["log.audit.rotation.date=$D0"])

    assert [(1 << 20, "$D0")] * 2 == [
        (each.rotation_size, each.rotation_date) for each in (both.log, both.audit)
    ]
    assert (0, "$D0") == (date.audit.rotation_size, date.audit.rotation_date)


TOKENS = ["auth_backends.1=oauth2", "auth_oauth2.resource_server_id=r"]
SERVERS = [*TOKENS, "auth_oauth2.issuer=https://i", "auth_oauth2.resource_servers.a.id=orders"]
DIRECTORY = [
    "auth_backends.1=ldap",
    "auth_ldap.servers.1=localhost",
    "auth_ldap.queries.vhost_access={constant, true}",
    "auth_ldap.queries.resource_access={constant, true}",
]


@pytest.mark.parametrize(
    ("package", "settings", "problem"),
    [
        (None, ["auth_backends.1=htpp"], "auth_backends.1 = 'htpp' must be internal, http, ldap, oauth2 or cache"),
        (None, ["auth_backends.first=http"], "auth_backends.first: the place in the chain must be a number"),
        (None, ["auth_backends.1.authn=http"], "auth_backends.1.authz is missing"),
        (None, ["auth_backends.1=http", "auth_backends.1.authz=internal"], "auth_backends.1 excludes auth_backends.1.authn"),
        (None, ["auth_cache.cached_backend=cache"], "auth_cache.cached_backend must not be cache itself"),
        (None, ["auth_cache.cached_backend.authn=http"], "auth_cache.cached_backend.authz is missing"),
        (None, ["auth_http.user_path=ftp://host/x"], "auth_http.user_path = 'ftp://host/x' must be an address such as"),
        (None, ["auth_http.request_timeout=0"], "auth_http.request_timeout must be more than 0"),
        (None, ["auth_http.ssl_options.certfile=/c"], "auth_http.ssl_options.certfile and auth_http.ssl_options.keyfile need"),
        (None, ["auth_http.ssl_options.cacertfile=/c"], "auth_http.ssl_options.cacertfile: there is no file /c"),
        (None, ["auth_http.unknown=1"], "auth_http.unknown is not supported: there is no such setting"),
        ("jwt", [*TOKENS[:1], "auth_oauth2.issuer=https://i"], "auth_oauth2.resource_server_id is missing"),
        ("jwt", TOKENS, "auth_oauth2.jwks_uri, auth_oauth2.issuer or auth_oauth2.signing_keys is missing"),
        ("jwt", [*TOKENS, "auth_oauth2.signing_keys.a=/nowhere"], "auth_oauth2.signing_keys.a: cannot read /nowhere"),
        ("jwt", [*TOKENS, f"auth_oauth2.signing_keys.a={__file__}"], "has no public key of a supported kind"),
        ("jwt", ["auth_oauth2.algorithms.1=none"], "auth_oauth2.algorithms.1 = 'none' must be one of RS256"),
        ("jwt", ["auth_oauth2.algorithms.1=HS256"], "auth_oauth2.algorithms.1 = 'HS256' must be one of RS256"),
        ("jwt", ["auth_oauth2.scope_aliases.1.alias=a"], "auth_oauth2.scope_aliases.1.scope is missing"),
        ("jwt", ["auth_oauth2.https.peer_verification=verify_none"], "is not supported"),
        ("jwt", [*SERVERS, "auth_oauth2.verify_aud=false"], "verify_aud = false excludes"),
        ("jwt", [*SERVERS, "auth_oauth2.resource_servers.b.id=orders"], "'orders' is there twice"),
        ("jwt", [*SERVERS, "auth_oauth2.resource_servers.r.scope_prefix=x"], "'r' is there twice"),
        ("jwt", [*SERVERS, "auth_oauth2.resource_servers.a.oauth_provider_id=p"], "is not supported"),
        ("ldap3", DIRECTORY[:1], "auth_ldap.servers.1 is missing"),
        ("ldap3", DIRECTORY[:3], "auth_ldap.queries.resource_access is missing: {constant, true} allows everything"),
        ("ldap3", DIRECTORY[:2] + DIRECTORY[3:], "auth_ldap.queries.vhost_access is missing"),
        ("ldap3", ["auth_backends.1=cache", "auth_cache.cached_backend=ldap", *DIRECTORY[1:3]], "auth_ldap.queries.resource_access is missing"),
        ("ldap3", [*DIRECTORY, "auth_ldap.queries.topic_access={match}"], "there is no query match of this form"),
        ("ldap3", [*DIRECTORY, "auth_ldap.queries.tags={constant, true}"], "auth_ldap.queries.tags: "),
        ("ldap3", [*DIRECTORY, "auth_ldap.use_ssl=true", "auth_ldap.use_starttls=true"], "auth_ldap.use_ssl and auth_ldap.use_starttls exclude each other"),
        ("ldap3", [*DIRECTORY, f"auth_ldap.ssl_options.cacertfile={__file__}"], "auth_ldap.ssl_options need auth_ldap.use_ssl"),
        ("ldap3", [*DIRECTORY, "auth_ldap.use_ssl=true", "auth_ldap.ssl_options.cacertfile=/nowhere"], "auth_ldap.ssl_options.cacertfile: there is no file /nowhere"),
        ("ldap3", [*DIRECTORY, "auth_ldap.timeout=0"], "auth_ldap.timeout must be more than 0"),
        ("ldap3", [*DIRECTORY, "auth_ldap.timeout=infinity"], "auth_ldap.timeout"),
        ("ldap3", [*DIRECTORY, "auth_ldap.log=network_unsafe"], "must be one of false"),
        ("ldap3", [*DIRECTORY, "auth_ldap.other_bind.user_dn=cn=a"], "auth_ldap.other_bind.password is missing"),
        ("ldap3", [*DIRECTORY, "auth_ldap.dn_lookup_bind.password=p"], "auth_ldap.dn_lookup_bind.user_dn is missing"),
        ("ldap3", [*DIRECTORY, "auth_ldap.other_bind=anon", "auth_ldap.other_bind.user_dn=cn=a", "auth_ldap.other_bind.password=p"], "auth_ldap.other_bind excludes auth_ldap.other_bind.user_dn"),
        ("ldap3", [*DIRECTORY, "auth_ldap.dn_lookup_attribute=uid"], "auth_ldap.dn_lookup_base need each other"),
        ("ldap3", [*DIRECTORY, "auth_ldap.dn_lookup_attribute=uid)(a=*", "auth_ldap.dn_lookup_base=dc=a"], "auth_ldap.dn_lookup_attribute: 'uid)(a=*' is not the name of an attribute"),
        ("ldap3", [*DIRECTORY, "auth_ldap.user_dn_pattern=uid=${vhost}"], "auth_ldap.user_dn_pattern may have ${username}"),
        ("ldap3", [*DIRECTORY, "auth_ldap.use_ssl=true", "auth_ldap.servers.2=ldap://localhost"], "auth_ldap.servers: 'ldap://localhost' is neither the name of a host nor an address"),
        ("ldap3", [*DIRECTORY, "auth_ldap.servers.2=ldaps://localhost"], "'ldaps://localhost' is neither the name"),
        ("ldap3", [*DIRECTORY, "auth_ldap.servers.2=localhost:636"], "'localhost:636' is neither the name"),
        ("ldap3", [*DIRECTORY, "auth_ldap.servers.2=a, b"], "'a, b' is neither the name"),
        ("ldap3", [*DIRECTORY, "auth_ldap.user_dn_pattern=uid=${username,ou=x"], "may have ${username}"),
        ("ldap3", [*DIRECTORY, "auth_ldap.user_dn_pattern=uid=ann"], "all users would be the same entry"),
        ("ldap3", [*DIRECTORY, 'auth_ldap.queries.tags=[{a, {in_group_nested, "cn=a"}}]'], "auth_ldap.group_lookup_base is missing"),
        ("ldap3", ["auth_backends.1.authn=internal", "auth_backends.1.authz=ldap", *DIRECTORY[1:]], "auth_ldap.other_bind: as_user needs the password of the user"),
        ("ldap3", [*DIRECTORY, "auth_ldap.ssl_options.versions.1=tlsv1.3"], "is not supported"),
    ],
)  # fmt: skip
def test_wrong_settings_of_backends_are_errors_that_name_the_key(package, settings, problem):
    """A missing half, an unsafe algorithm, a default that allows everything, names that cannot be told apart."""
    if package is not None:
        pytest.importorskip(package)
    with pytest.raises(ConfigError) as caught:
        load(settings=settings)

    assert problem in str(caught.value)


@pytest.mark.parametrize(("extra", "settings"), [("oauth2", SERVERS[:3]), ("ldap", DIRECTORY)])
def test_a_backend_needs_an_extra(monkeypatch, extra, settings):
    """Without the library the error says what to install."""
    monkeypatch.setattr("leveret.broker.config.backends.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=rf"pip install 'leveret\[{extra}\]'"):
        load(settings=settings)


def test_the_chain_of_backends_is_in_the_order_of_its_numbers():
    """Short and long names of RabbitMQ are taken, and a pair of backends in one place."""
    backends = load(
        settings=[
            "auth_backends.10=internal",
            "auth_backends.2.authn=rabbit_auth_backend_http",
            "auth_backends.2.authz=internal",
            "auth_http.http_method=post",
            "auth_cache.cache_ttl=2000",
        ]
    ).backends

    assert [("http", "internal"), ("internal", "internal")] == [
        (step.authn, step.authz) for step in backends.chain
    ]
    assert ("post", 2.0) == (backends.http.http_method, backends.cache.ttl)
    assert {"http", "internal"} == backends.used
    assert load(settings=["auth_backends.1=internal"]).backends.is_internal


def test_several_resource_servers_have_the_general_settings_where_they_have_none():
    """Each has a name, a prefix that follows from it, and its own claims if it says so."""
    pytest.importorskip("jwt")
    prefix = "auth_oauth2.resource_servers"
    lines = [TOKENS[0], "auth_oauth2.issuer=https://i", "auth_oauth2.additional_scopes_key=roles"]
    settings = [
        f"{prefix}.one.id=orders",
        f"{prefix}.two.scope_prefix=",
        f"{prefix}.two.additional_scopes_key=more",
    ]
    oauth2 = load(settings=[*lines, *settings]).backends.oauth2

    assert {("orders", "orders.", "roles"), ("two", "", "more")} == {
        (each.id, each.prefix, each.additional_scopes_key) for each in oauth2.servers.values()
    }


@pytest.mark.parametrize("value", ["true", "false"])
def test_deprecated_features_are_permitted_or_not(value):
    """RabbitMQ's keys set the switches of the same behaviour; the later one of both counts."""
    names = ("transient_nonexcl_queues", "global_qos")
    config = load(settings=[f"deprecated_features.permit.{name}={value}" for name in names])
    expected = ("permitted", "permitted") if value == "true" else ("denied", "ignored")

    assert expected == tuple(getattr(config.compatibility, name) for name in names)
    assert () == config.warnings
    assert load(settings=["deprecated_features.permit.ram_node_type=false"]).warnings


def test_the_configuration_of_an_issuer_may_be_elsewhere():
    """`discovery_endpoint_path` and its parameters make the address, as Microsoft Entra ID needs it."""
    pytest.importorskip("jwt")
    lines = [*TOKENS[:1], "auth_oauth2.resource_server_id=rabbitmq", "auth_oauth2.issuer=https://i/"]
    more = [
        "auth_oauth2.discovery_endpoint_path=/v2.0/conf",
        "auth_oauth2.discovery_endpoint_params.appid=a b",
    ]
    plain, other = (load(settings=[*lines, *each]).backends.oauth2 for each in ([], more))

    assert "https://i/.well-known/openid-configuration" == plain.discovery_url(plain.issuer)
    assert "https://i/v2.0/conf?appid=a+b" == other.discovery_url(other.issuer)
    assert load(settings=[*lines, "auth_oauth2.require_exp=true"]).backends.oauth2.require_exp


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("auth_oauth2.resource_server_type", "the claim `authorization_details` of tokens is not read"),
        ("auth_oauth2.oauth_providers.a.issuer", "there is one issuer"),
        ("auth_oauth2.https.verify", "the certificate of the issuer is always verified"),
    ],
)
def test_what_decides_about_tokens_and_is_not_here_stops_the_start(key, reason):
    """The error says why."""
    with pytest.raises(ConfigError, match=reason):
        load(settings=[f"{key}=x"])


def test_the_settings_of_a_directory_are_combined():
    """Servers are in order, an entry with a password replaces the words, and the port follows from TLS."""
    pytest.importorskip("ldap3")
    config = load(
        settings=[
            *DIRECTORY,
            "auth_ldap.servers.10=last",
            "auth_ldap.servers.2=next",
            "auth_ldap.use_ssl=true",
            "auth_ldap.timeout=1500",
            "auth_ldap.other_bind.user_dn=cn=broker",
            "auth_ldap.other_bind.password=secret",
            "auth_ldap.dn_lookup_attribute=none",
            "auth_ldap.idle_timeout=300000",
        ]
    )
    ldap = config.backends.ldap

    assert (("localhost", "next", "last"), 636, 1.5) == (ldap.servers, ldap.the_port, ldap.timeout)
    assert ("entry", "cn=broker", "secret") == (
        ldap.other_bind.way,
        ldap.other_bind.dn,
        ldap.other_bind.password,
    )
    assert ("", "as_user") == (ldap.dn_lookup_attribute, ldap.dn_lookup_bind.way)
    assert ["auth_ldap.idle_timeout"] == [each.split()[1] for each in config.warnings]


def test_the_settings_of_tokens_are_combined():
    """Numbered keys are in order, aliases have two forms, and the prefix follows from the name of the broker."""
    oauth2 = load(
        settings=[
            "auth_oauth2.resource_server_id=mq",
            "auth_oauth2.algorithms.2=RS256",
            "auth_oauth2.algorithms.1=ES256",
            "auth_oauth2.preferred_username_claims.1=name",
            "auth_oauth2.scope_aliases.admin=mq.tag:administrator mq.read:*/*",
            "auth_oauth2.scope_aliases.1.alias=api://x/y",
            "auth_oauth2.scope_aliases.1.scope=mq.write:*/*",
        ]
    ).backends.oauth2

    assert (("ES256", "RS256"), ("name",), "mq.") == (
        oauth2.algorithms,
        oauth2.username_claims,
        oauth2.prefix,
    )
    assert {
        "admin": ("mq.tag:administrator", "mq.read:*/*"),
        "api://x/y": ("mq.write:*/*",),
    } == oauth2.scope_aliases


def test_anonymous_logins_need_a_user():
    """The mechanism is offered where a user is configured for it, and only there."""
    assert ("PLAIN", "AMQPLAIN") == load(settings=["anonymous_login_user=none"]).auth_mechanisms
    assert ("PLAIN", "AMQPLAIN", "ANONYMOUS") == load(settings=["anonymous_login_user=ann"]).auth_mechanisms
    named = load(settings=["anonymous_login_user=ann", "auth_mechanisms.1=PLAIN"])
    assert (("PLAIN",), "ann") == (named.auth_mechanisms, named.anonymous_user)
    with pytest.raises(ConfigError, match="auth_mechanisms: ANONYMOUS needs anonymous_login_user"):
        load(settings=["auth_mechanisms.1=ANONYMOUS"])


@pytest.mark.parametrize("key", ["event_exchange.vhost", "default_vhost"])
def test_the_vhost_of_the_event_exchange_has_a_name_that_amqp_can_represent(key):
    """A longer name is refused at the start, with the key that has it; 255 bytes are allowed."""
    problem = f"{key}: the name of a virtual host has at most 255 bytes"
    for long in ("v" * 256, "\u00e4" * 128):
        assert (problem,) == problems_of(f"{key}={long}")
    load(settings=[f"{key}={'v' * 255}"])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("key", ["disk_free_limit", "vm_memory_high_watermark"])
def test_a_limit_in_bytes_goes_before_one_relative_to_the_memory(key, order):
    """Of two limits for one thing the absolute one is obeyed, whichever is written first; a warning says so."""
    limit = {"disk_free_limit": disk_limit, "vm_memory_high_watermark": memory_limit}[key]
    attribute = {"disk_free_limit": "disk_free", "vm_memory_high_watermark": "memory"}[key]

    def found(*settings):
        config = load(settings=settings)
        octets = limit(getattr(config, f"{attribute}_absolute"), getattr(config, f"{attribute}_relative"))
        return octets, config.warnings

    both = [f"{key}.relative=0.5", f"{key}.absolute=50000"][::order]
    warning = f"{key}.relative has no effect: {key}.absolute takes precedence"
    assert (50000, (warning,)) == found(*both)
    assert (50000, ()) == found(f"{key}.absolute=50000")
    assert (total_memory() // 2, ()) == found(f"{key}.relative=0.5")


def test_a_value_of_several_lines(tmp_path):
    """A value in three single quotes has several lines; one that does not end is an error of its first line."""
    config = config_of(
        tmp_path, "default_pass = '''a # b\n  c = d''' # end\nheartbeat = 7\ndefault_vhost = '''v'''\n"
    )

    assert ("a # b\n  c = d", 7, ("v",)) == (config.users[0].password, config.heartbeat, config.vhosts)
    with pytest.raises(ConfigError, match=":2: the value of default_pass must end with"):
        config_of(tmp_path, "heartbeat = 7\ndefault_pass = '''a\nb\n")
