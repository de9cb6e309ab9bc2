"""The keys of replication: the URL is a secret, and nothing is half configured."""

import os
from importlib.machinery import ModuleSpec

import pytest

from leveret.broker.config import vhost_processes
from leveret.broker.config.config import Config, ConfigError, effective, load
from leveret.broker.config.encrypted import encrypt
from leveret.broker.embedded.core import make_config
from leveret.broker.embedded.errors import ConfigurationError

URL = "replication.url=postgresql://leveret:hidden@db1,db2/leveret"


@pytest.fixture(autouse=True)
def psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhost_processes, "find_spec", lambda name: ModuleSpec(name, None))


def problems(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(settings=settings)
    return str(caught.value)


def test_defaults() -> None:
    """Without a URL nothing is replicated; with one the node has the name of its host."""
    assert Config().replication == load().replication
    found = load(settings=[URL]).replication

    assert (os.uname().nodename, os.uname().nodename) == (found.node_name, found.advertised_address)
    assert ("true", 262144, 10.0) == (found.require_synchronous, found.max_batch, found.stall_timeout)


def test_the_url_is_a_secret() -> None:
    """The effective configuration has no part of the URL."""
    shown = "\n".join(effective(load(settings=[URL])))

    assert '"engine_url":"***"' in shown
    assert "hidden" not in shown
    assert "db1" not in shown


def test_a_preview_is_announced() -> None:
    """Replication is a preview, which a start warns of; so it does if a lost database would lose messages."""
    assert ["preview"] == [
        word for text in load(settings=[URL]).warnings for word in ("preview",) if word in text
    ]
    assert 2 == len(load(settings=[URL, "replication.require_synchronous=false"]).warnings)
    assert 1 == len(load(settings=[URL, "replication.require_synchronous=engine"]).warnings)


def test_what_is_refused() -> None:
    """Another scheme, keys without a URL, and names that nobody can read are errors that show no secret."""
    found = problems("replication.url=mysql://leveret:hidden@db1/leveret")

    assert "replication.url must begin with postgresql://" in found
    assert "hidden" not in found
    assert "replication.url is missing" in problems("replication.node_name=n1")
    for name in ("One", "1", "pg_one", "a-b", 41 * "a"):
        assert "replication.log must be at most 40" in problems(URL, f"replication.log={name}")
    assert "one" == load(settings=[URL, "replication.log=one"]).replication.log
    assert "replication.node_name" in problems(URL, "replication.node_name=n\x07")


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package psycopg the error has the extra that installs it."""
    monkeypatch.setattr(vhost_processes, "find_spec", lambda _name: None)

    assert "leveret[postgresql]" in problems(URL)


def test_an_embedded_broker_is_not_replicated() -> None:
    """The keys are an error for a broker inside another program."""
    with pytest.raises(ConfigurationError, match="not replicated"):
        make_config({"replication.url": "postgresql://db/leveret"}, None, 0)


def test_the_url_may_be_encrypted() -> None:
    """It is used as it was before, and shown as no part of it."""
    hidden = encrypt(URL.partition("=")[2], "words")
    config = load(settings=[f"replication.url={hidden}", "config_entry_decoder.passphrase=words"])

    assert URL.partition("=")[2] == config.replication.engine_url
    assert "hidden" not in "\n".join(effective(config))
