"""`compatibility.profile` sets what the user has not set."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from leveret.broker.cli.main import show_config
from leveret.broker.config.config import PROFILE, PROFILES, ConfigError, load
from leveret.broker.config.keys import KEYS
from tests.doubles.fakes import Node


def test_profile_applies_in_any_order() -> None:
    """A profile sets its keys, whichever setting comes first, and leaves those that are set."""
    for settings in (
        (f"{PROFILE}=4.3", "max_message_size=1MiB"),
        ("max_message_size=1MiB", f"{PROFILE}=4.3"),
    ):
        config = load((), settings=settings)
        assert config.limits.max_message_size == 1024**2
        assert config.compatibility.global_qos == "ignored"


def test_last_profile_applies() -> None:
    """Of several profiles the last one applies, alone."""
    config = load((), settings=(f"{PROFILE}=4.3", f"{PROFILE}=3.13"))
    assert config.compatibility == load(()).compatibility


def test_default_is_3_13() -> None:
    """Without a profile all is as with 3.13."""
    assert load(()) == load((), settings=(f"{PROFILE}=3.13",))


def test_unknown_profile_is_refused() -> None:
    """An unknown profile is an error that names those there are."""
    with pytest.raises(ConfigError, match=r"compatibility\.profile = '4' must be one of 3\.13, 4\.3"):
        load((), settings=(f"{PROFILE}=4",))


@pytest.mark.parametrize("profile", PROFILES)
def test_each_row_changes_a_default(profile: str) -> None:
    """Each setting of a profile is valid, and differs from the key's default."""
    names = {key.name for key in KEYS}
    for key, value in PROFILES[profile].items():
        assert key in names
        assert load((), settings=(f"{key}={value}",)) != load(()), key


def test_page_lists_profiles() -> None:
    """docs/compatibility.md lists each key of the profile 4.3 with both values, and no other."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "compatibility.md").read_text()
    section = page.partition("## Profiles\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line[:3] == "| `"
    ]
    assert PROFILES["4.3"] == {key: value for key, _, value in rows}
    for key, value, _ in rows:
        assert load((), settings=(f"{key}={value}",)) == load(()), key


def test_command_tells_origin() -> None:
    """`leveret config` shows what follows from a profile, with its origin."""
    shown = CliRunner().invoke(show_config, ["--set", f"{PROFILE}=4.3", "compatibility.global_qos"])
    assert "ignored" in shown.output
    assert f"{PROFILE} = 4.3" in shown.output


def test_broker_claims_version_of_profile() -> None:
    """Clients read the version of the profile."""
    for profile, version in (("3.13", b"3.13.7"), ("4.3", b"4.3.6")):
        node = Node(compatibility=load((), settings=(f"{PROFILE}={profile}",)).compatibility)
        assert version in node.start_frame
