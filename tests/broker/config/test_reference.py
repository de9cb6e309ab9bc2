"""The text of `leveret config`."""

import pytest

from leveret.broker.config.keys import KEYS
from leveret.broker.config.rabbitmq import FOREIGN
from leveret.broker.config.reference import MOST_USED, Overview, meaning
from leveret.broker.config.values import Setting

ROWS = {key.name: key for key in KEYS}


def test_every_key_is_listed_once():
    """With its default and a meaning; those that are used most come first."""
    lines = list(Overview().lines())
    listed = [line.split(" =")[0].strip() for line in lines if " =" in line and line.startswith("  ")]

    assert list(MOST_USED) == listed[: len(MOST_USED)]
    assert sorted(ROWS) == sorted(listed)
    assert "  consumer_timeout = 30m                     time limit of an ack; 0 for none" in lines


def test_every_ignored_key_is_listed():
    """Those that stop the start apart from those that only cause a warning."""
    text = " ".join(Overview().ignored()).split()
    stops = text.index("protect")

    for row in FOREIGN:
        for name in row.keys:
            assert any(name == each.rstrip(",") for each in (text[stops:] if row.refused else text[:stops]))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_of_a_key_is_wider_than_the_terminal(width):
    """A meaning is cut, those of the keys that are used most are not; what remains wider is a key and its value."""
    long = [line for line in Overview(width=width).lines() if len(line) > width]

    assert [] == [
        line for line in long if not line.rstrip().endswith(("infinity", "=", ".*")) and " = " in line
    ]
    if width >= 80:
        for name, words in MOST_USED.items():
            assert any(
                line.lstrip("* ").startswith(f"{name} =") and line.endswith(words)
                for line in Overview(width=width).lines()
            )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("heartbeat", "60s"),
        ("max_message_size", "128MiB"),
        ("initial_frame_max", "8192"),
        ("confirm.timeout", "0"),
    ],
)
def test_defaults_have_units(name, shown):
    """Of a size from 64 KiB on."""
    assert shown == ROWS[name].default


def test_a_meaning_is_one_sentence():
    """Without the links of the reference."""
    assert "Serve metrics and health checks over HTTP" == meaning(ROWS["prometheus.enabled"])
    assert not any("](" in meaning(key) or "\n" in meaning(key) for key in KEYS)


def test_settings_come_first_with_their_origin():
    """Passwords are masked, and keys without effect are listed with the reason."""
    obeyed = [
        Setting("heartbeat", "8", "--set"),
        Setting("listeners.tcp.lan", "5672", "a.conf:2"),
        Setting("default_users.ann.password", "hush", "a.conf:3"),
    ]
    lines = list(
        Overview(obeyed, ["a.conf:4: raft.x is not supported: clustering is not supported; ignored"]).lines()
    )

    assert [
        "Set (key = value)",
        "  heartbeat = 8                     --set",
        "  listeners.tcp.lan = 5672          a.conf:2",
        "  default_users.ann.password = ***  a.conf:3",
        "",
        "Without effect",
        "  clustering is not supported:",
        "    a.conf:4: raft.x",
    ] == lines[:8]
    assert "* heartbeat = 60s" in {line[:17] for line in lines}
    assert "hush" not in "".join(lines)


def test_a_key_is_explained():
    """Its whole text, values, default, setting, variable and topic; a chosen part of the name is understood."""
    text = "\n".join(Overview([Setting("consumer_timeout", "1h", "--set")]).explained("consumer_timeout"))

    assert text.startswith("consumer_timeout = 30m\n")
    for part in ("compatibility.consumer_timeout", "duration, bare number: ms", "consumer_timeout = 1h  (--set)",
                 "LEVERET_CONSUMER_TIMEOUT", "Connections and channels", "RabbitMQ and Leveret"):  # fmt: skip
        assert part in text
    named = "\n".join(Overview().explained("listeners.tcp.lan"))
    assert "Variable" not in named
    assert named.startswith("listeners.tcp.$name = 127.0.0.1:5672\n")
    assert "Leveret only" in "\n".join(Overview().explained("confirm.mode"))


def test_an_ignored_key_is_explained():
    """The reason, and what setting it does."""
    refused = " ".join(Overview().explained("ssl_options"))
    ignored = " ".join(Overview().explained("raft.wal_max_size"))

    assert "stops the start (exit code 78); none is accepted silently" in refused
    assert "clustering is not supported; see `replication.url`" in ignored
    assert "Setting it is a warning in the log" in ignored
    assert "Similar keys: management.tcp.port" in " ".join(Overview().explained("management.port"))


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("heartbit", "heartbeat"),
        ("vm_memory", "vm_memory_high_watermark.relative"),
        ("LISTENERS", "listeners.tcp"),
    ],
)
def test_a_key_that_does_not_exist_has_near_ones(written, near):
    """By similarity, or because the name is a part of theirs."""
    assert None is Overview().explained(written)
    assert near in Overview().near(written)


def test_nothing_is_near_to_nonsense():
    """There is no suggestion then."""
    assert [] == Overview().near("zzzzqqqq")
