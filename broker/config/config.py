"""The configuration: ``load``, which creates a ``Config`` from files, the environment and flags, and what it is.

Precedence: flags, then environment, then files (later ones win), then defaults. All problems are collected before any
is reported. ``Config()`` has the defaults, and any part can be given by name, so tests need no files:
``Config(listeners=(Listener("127.0.0.1", 0),))``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.broker.config.combined import config_of
from leveret.broker.config.draft import Draft
from leveret.broker.config.encrypted import decrypted
from leveret.broker.config.keys import KEYS
from leveret.broker.config.sections import (
    Config,
    ExportConfig,
    LogConfig,
    ManagementConfig,
    PrometheusConfig,
    StorageConfig,
    TopicPermissionConfig,
    UserConfig,
)
from leveret.broker.config.sources import written_settings
from leveret.broker.config.values import Listener

__all__ = [
    "Config", "ConfigError", "ExportConfig", "Listener", "LogConfig", "ManagementConfig",
    "PrometheusConfig", "StorageConfig", "TopicPermissionConfig", "UserConfig", "effective", "load",
]  # fmt: skip

_SECRETS: Final = frozenset((key.attribute or key.name).rpartition(".")[2] for key in KEYS if key.secret)
"""Names of attributes that are secrets."""


class ConfigError(Exception):
    """Raised if the configuration is invalid; ``problems`` has one sentence per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def load(
    config_paths: Iterable[Path] = (),
    data_dir: Path | None = None,
    settings: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    values: Mapping[str, object] | None = None,
) -> Config:
    """Create a ``Config`` from files, the environment, ``KEY=VALUE`` settings and a mapping of keys to values.

    Without ``config_paths``, ``LEVERET_CONFIG_FILE`` or ``RABBITMQ_CONFIG_FILE`` in ``environ`` names a file, and
    ``RABBITMQ_CONFIG_FILES`` further ones. See ``values.read_file`` for paths other than files.

    Raises ConfigError with all problems.
    """
    problems: list[str] = []
    warnings: list[str] = []
    written = written_settings(config_paths, data_dir, settings, environ or {}, problems, warnings, values)
    draft = Draft(problems, warnings)
    for setting in decrypted(written, problems):
        draft.add(setting)
    config = config_of(draft)
    if problems:
        raise ConfigError(problems)
    files = dict.fromkeys(setting.file.absolute() for setting in written if setting.file is not None)
    return msgspec.structs.replace(config, files=tuple(files))


def effective(config: Config) -> Iterator[str]:
    """Yield the effective configuration as ``attribute = value`` lines; passwords are masked."""
    shown = msgspec.to_builtins(config, enc_hook=str)
    shown |= shown.pop("limits")
    _mask(shown)
    yield from (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in shown.items())


def _mask(value: Any) -> None:
    """Replace the secrets in plain values, at any depth; an empty one is shown."""
    if isinstance(value, dict):
        for name in _SECRETS & value.keys():
            value[name] = "***" if value[name] else ""
    for each in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        _mask(each)
