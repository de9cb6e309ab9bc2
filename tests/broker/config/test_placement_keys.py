"""The keys of processes for virtual hosts."""

from pathlib import Path

import pytest

from leveret.broker.config.config import Config, ConfigError, load
from leveret.broker.config.vhost_processes import config_of_process
from leveret.broker.embedded.core import make_config
from leveret.broker.embedded.errors import ConfigurationError

WITHOUT = ("shovel.enabled=false",)
MODE = ("vhosts.processes=2", *WITHOUT)


def problems(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(settings=settings)
    return str(caught.value)


def test_off_by_default() -> None:
    """A broker is one process; the mode is announced as experimental."""
    assert 0 == load().placement.processes == Config().placement.processes
    assert not load().warnings
    found = load(settings=[*MODE, "vhosts.process.orders=2"])

    assert (2, {"orders": 2}) == (found.placement.processes, found.placement.pins)
    assert any("experimental" in text for text in found.warnings)


@pytest.mark.parametrize(
    "setting",
    [
        "shovel.enabled=true",
        "event_exchange.enabled=true",
        "proxy_protocol=true",
        "replication.url=postgresql://db/leveret",
        "listeners.ssl.1=5671",
        "auth_backends.1=http",
        "load_definitions=file.json",
        "export.dir=export",
        "log.file=leveret.log",
        "log.audit.file=audit.log",
        "channel_max_per_node=7",
        "cluster_queue_limit=7",
        "cluster_exchange_limit=7",
    ],
)
def test_what_needs_one_view_is_refused(setting: str) -> None:
    """A setting that would hold for a part of the broker only is an error that names its key."""
    key = setting.partition("=")[0].replace(".1", ".*")

    assert f"{key} " in problems(*MODE, setting)
    assert "vhosts.processes" in problems(*MODE, setting)


def test_pins_are_of_processes_that_there_are() -> None:
    """A pin needs the mode, and is at most the number of processes."""
    assert "vhosts.processes is missing" in problems("vhosts.process.orders=1")
    assert "vhosts.process.orders must be at most vhosts.processes (2)" in problems(
        *MODE, "vhosts.process.orders=3"
    )
    assert "vhosts.process.orders" in problems(*MODE, "vhosts.process.orders=0")


def test_an_embedded_broker_is_one_process() -> None:
    """The keys are an error for a broker inside another program."""
    with pytest.raises(ConfigurationError, match="one process"):
        make_config({"vhosts.processes": 2}, None, 0)


def test_a_process_has_its_share() -> None:
    """It has a directory of its own, its share of memory, and neither listeners nor users of the configuration."""
    settings = [*MODE, "vm_memory_high_watermark.absolute=1000", "default_limits.vhosts.1.max_queues=3"]
    found = config_of_process(load(data_dir=Path("var"), settings=[*settings, "pid_file=pid"]), 2)

    assert Path("var/processes/2") == found.data_dir
    assert (500, 0.2) == (found.memory_absolute, found.memory_relative)
    assert ((), (), (), None) == (found.listeners, found.users, found.vhosts, found.pid_file)
    assert () == found.limits.default_limits
    assert 0 == found.placement.processes


def test_brokers_of_virtual_hosts_are_addresses() -> None:
    """Several with commas between, each with a port; what goes on without TLS or leads a log forwards nobody."""
    found = load(settings=["vhosts.broker.a=one:1,[::1]:2"])

    assert ["one:1", "[::1]:2"] == [str(each) for each in found.placement.elsewhere["a"]]
    assert ["vhosts.broker is experimental (docs/howto/vhost-processes.md)"] == list(found.warnings)
    for value in ("one", "one:0", ":1", "one:1,"):
        assert "vhosts.broker.a" in problems(f"vhosts.broker.a={value}")
    for setting in ("replication.url=postgresql://db/leveret", "listeners.ssl.1=5671"):
        key = setting.partition("=")[0].replace(".1", ".*")
        assert f"{key} cannot be set with vhosts.broker" in problems("vhosts.broker.a=one:1", setting)
    with pytest.raises(ConfigurationError):
        make_config({"vhosts.broker.a": "one:1"}, None, 0)


def test_brokers_may_be_reached_by_tls(tmp_path: Path) -> None:
    """Then all addresses of a virtual host are, and clients may come by TLS if all virtual hosts are."""
    found = load(settings=["vhosts.broker.a=amqps://one:1, amqps://[::1]:2", "vhosts.ssl_options.sni=b"])

    assert ["amqps://one:1", "amqps://[::1]:2"] == [str(each) for each in found.placement.elsewhere["a"]]
    assert "b" == found.placement.tls.sni
    assert "for all addresses or none" in problems("vhosts.broker.a=amqps://one:1,two:1")
    assert "has no effect" in problems("vhosts.broker.a=one:1", "vhosts.ssl_options.sni=b")
    brokers = ("vhosts.broker.a=amqps://one:1", "vhosts.broker.b=two:1")
    assert "there is no file" in problems(brokers[0], f"vhosts.ssl_options.cacertfile={tmp_path / 'none'}")
    listener = "listeners.ssl.* cannot be set with vhosts.broker"
    assert listener not in problems(brokers[0], "listeners.ssl.1=5671")
    assert listener in problems(*brokers, "listeners.ssl.1=5671")


@pytest.mark.parametrize(
    "setting", ["replication.url=postgresql://db/leveret", "vhosts.broker.a=b:1", "vhosts.processes=2"]
)
def test_a_directory_is_for_brokers_that_only_forward(setting: str) -> None:
    """The key names a database, and excludes other modes; it is announced as experimental, its text is a secret."""
    url = "vhosts.directory=postgresql://leveret:hidden@db/leveret"
    assert any("vhosts.directory is experimental" in text for text in load(settings=[url]).warnings)
    key = setting.partition("=")[0].removesuffix(".a")
    assert f"{key} cannot be set with vhosts.directory" in problems(url, setting, *WITHOUT)
    assert "vhosts.directory must begin with postgresql://" in problems("vhosts.directory=mysql://db")
    assert "hidden" not in problems(url, setting, *WITHOUT)


def test_shared_users_need_a_log() -> None:
    """The log that has them is named as logs are, at a node of one of several, or where clients are forwarded."""
    assert "vhosts.users_log has no effect without" in problems("vhosts.users_log=users")
    log = ("replication.url=postgresql://db/leveret", "replication.log=a")
    assert "vhosts.users_log must be at most 40" in problems("vhosts.users_log=No", *log)
    assert "users" == load(settings=["vhosts.users_log=users", *log]).placement.users_log
