"""The configuration of an embedded broker: a mapping with the keys of the configuration file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leveret.broker.config.config import Config, ConfigError, load
from leveret.broker.embedded.errors import ConfigurationError

# Settings of a process that is nothing but a broker; here the process is the application's.
_OF_THE_PROCESS: Final = {
    "data_dir": "it is the argument data_dir",
    "pid_file": "an embedded broker has no process of its own",
    "log": "an embedded broker logs to the loggers below 'leveret' of the module logging, which are the application's",
    "prometheus": "an embedded broker has no metrics listener",
    "replication": "an embedded broker is not replicated: `leveret serve` is",
    "vhosts": "an embedded broker is one process: `leveret serve` may be several",
    "management": "the management API is served with the argument management=True",
}
_OF_LOGINS: Final = ("management.oauth_", "management.disable_basic_auth")
"""Beginnings of keys about the management API that say who may use it."""
_DEFAULTS: Final = {
    # All memory of the process counts, so the broker would block publishers because of what the application needs.
    "vm_memory_high_watermark.relative": "1"
}


def make_config(values: Mapping[str, object], data_dir: Path | None, port: int) -> Config:
    """Return the configuration of an embedded broker; raises ConfigurationError with all problems.

    `data_dir` is None for a broker in memory. The `port` on 127.0.0.1, 0 for a free one, is used unless `values` has
    listeners.
    """
    problems = [
        f"config: {key}: {_OF_THE_PROCESS[top]}"
        for key in values
        if (top := str(key).partition(".")[0]) in _OF_THE_PROCESS and not str(key).startswith(_OF_LOGINS)
    ]
    if problems:
        raise ConfigurationError(tuple(problems))
    given: dict[str, object] = dict(_DEFAULTS)
    if not any(str(key).startswith("listeners.tcp") for key in values):
        given["listeners.tcp.default"] = f"127.0.0.1:{port}"
    elif port:
        raise ConfigurationError(("config: listeners.tcp: the argument port is given, too",))
    if any(str(key).startswith("vm_memory_high_watermark.") for key in values):
        del given["vm_memory_high_watermark.relative"]
    try:
        return load((), data_dir, values=given | dict(values))
    except ConfigError as error:
        raise ConfigurationError(error.problems) from None
