"""The configuration: `load`, which creates a `Config` from files, the environment and flags.

Precedence: flags, then environment, then files (later ones win), then defaults. All problems are collected before any
is reported. ``Config()`` has the defaults, and any part can be given by name, so tests need no files:
``Config(listeners=(Listener("127.0.0.1", 0),))``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from leveret.broker.config.combined import config_of
from leveret.broker.config.encrypted import decrypted
from leveret.broker.config.keys import KEYS, Draft
from leveret.broker.config.rabbitmq import SUFFIX, file_settings, settings_of, with_env_file
from leveret.broker.config.sections import (
    MANAGEMENT_PORT,
    METRICS_PORT,
    Config,
    ExportConfig,
    LogConfig,
    ManagementConfig,
    PrometheusConfig,
    StorageConfig,
    TopicPermissionConfig,
    UserConfig,
)
from leveret.broker.config.values import DEFAULT_PORT, MOST_PORT, Listener, Setting, read_file

__all__ = [
    "Config", "ConfigError", "ExportConfig", "Listener", "LogConfig", "ManagementConfig",
    "PrometheusConfig", "StorageConfig", "TopicPermissionConfig", "UserConfig", "effective", "load",
]  # fmt: skip

OLDER: Final = "management.listener."  # how RabbitMQ's older names begin, of one listener with or without TLS
PERMIT: Final = "deprecated_features.permit."  # how RabbitMQ's keys of features begin that it may deny
DENIED: Final = {"transient_nonexcl_queues": "denied", "global_qos": "ignored"}
"""Those that there are here, as `compatibility.*`, and the values that deny them."""
OLDER_PORT: Final = 15672  # its default port, with TLS too
PROFILE: Final = "compatibility.profile"
PROFILES: Final[Mapping[str, Mapping[str, str]]] = {
    "3.13": {},
    "4.3": {key.name: key.in_4 for key in sorted(KEYS, key=lambda key: key.name) if key.in_4},
}
"""Profile → key → value, where the user has set none. The profile 3.13 is the keys' own defaults.

Sources: the release notes of RabbitMQ 4.0 to 4.3, and 4.3.6 itself (docs/compatibility.md has the table).
"""


def written_settings(
    config_paths: Iterable[Path],
    data_dir: Path | None,
    settings: Iterable[str],
    environ: Mapping[str, str],
    problems: list[str],
    warnings: list[str],
    values: Mapping[str, object] | None = None,
) -> list[Setting]:
    """Return the settings of profile, files, environment and flags; later ones replace earlier ones.

    `problems` gets a sentence about everything that cannot be read, `warnings` one about each variable that sets
    nothing. The others are the arguments of `load`.
    """
    written: list[Setting] = []
    environ = with_env_file(environ, problems, warnings)
    for path in named_files(config_paths, environ):
        written += (
            file_settings(path, problems) if path.suffix == SUFFIX else read_file(path, environ, problems)
        )
    written += settings_of(environ, problems, warnings)
    written += from_environment(environ, warnings)
    written += from_flags(settings, problems)
    written += from_mapping(values or {}, problems)
    if data_dir is not None:
        written.append(Setting("data_dir", str(data_dir), "--data-dir"))
    written = renamed([permitted(each) for each in written], problems)
    profile = next((each.value for each in reversed(written) if each.key == PROFILE), "")
    chosen = PROFILES.get(profile, {})  # an unknown one is refused where values are parsed
    return [Setting(key, value, f"{PROFILE} = {profile}") for key, value in chosen.items()] + written


def permitted(setting: Setting) -> Setting:
    """Return a setting with RabbitMQ's name of a deprecated feature as that of the switch that it is here."""
    name = setting.key.removeprefix(PERMIT)
    if name == setting.key or name not in DENIED or setting.value not in {"true", "false"}:
        return setting
    key, value = f"compatibility.{name}", "permitted" if setting.value == "true" else DENIED[name]
    return msgspec.structs.replace(setting, key=key, value=value)


def renamed(written: list[Setting], problems: list[str]) -> list[Setting]:
    """Return the settings with RabbitMQ's older names of one listener, `management.listener.*`, as the newer ones.

    `problems` gets a sentence if the listener is set under both names, or TLS options would be without effect.
    """
    older = [setting for setting in written if setting.key.startswith(OLDER)]
    switch = next((each for each in reversed(older) if each.key == f"{OLDER}ssl"), None)
    has_tls = switch is not None and switch.value == "true"
    if not has_tls:  # which says nothing about a listener
        older = [each for each in older if each.key not in {f"{OLDER}ssl", f"{OLDER}ssl_opts"}]
    newer, options = "management.ssl." if has_tls else "management.tcp.", f"{OLDER}ssl_opts."
    if switch is not None and switch.value not in {"true", "false"}:
        problems.append(f"{switch.origin}: {switch.key} must be true or false")
    elif older and (both := next((each for each in written if each.key.startswith(newer)), None)):
        first = older[0]
        problems.append(
            f"{first.origin}: {first.key} and {both.key} are of the same listener: remove one of them"
        )
    elif not has_tls and (without := next((each for each in older if each.key.startswith(options)), None)):
        problems.append(f"{without.origin}: {without.key} has no effect without {OLDER}ssl = true")
    found = []
    for setting in written:
        key = setting.key
        if key == f"{OLDER}ssl":
            continue
        if key.startswith(OLDER) and key != options[:-1]:
            for beginning in (options, f"{OLDER}server.", OLDER):
                key = key.removeprefix(beginning)
            found.append(msgspec.structs.replace(setting, key=newer + key))
        else:
            found.append(setting)
    if has_tls and not any(each.key == "management.ssl.port" for each in found):
        found.append(Setting("management.ssl.port", str(OLDER_PORT), f"{OLDER}ssl"))
    return found


def named_files(config_paths: Iterable[Path], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files to read: those given, or else those that the environment names, in RabbitMQ's order."""
    if given := tuple(config_paths):
        return given
    named = []
    if name := environ.get("LEVERET_CONFIG_FILE") or environ.get("RABBITMQ_CONFIG_FILE"):
        path = Path(name)
        # RabbitMQ allows RABBITMQ_CONFIG_FILE without the suffix, and takes rabbitmq.conf before the classic one.
        if path.suffix not in {".conf", SUFFIX} and not path.is_dir():
            classic, path = path.with_name(path.name + SUFFIX), path.with_name(f"{path.name}.conf")
            path = classic if classic.exists() and not path.exists() else path
        named.append(path)
    if more := environ.get("RABBITMQ_CONFIG_FILES"):
        named.append(Path(more))
    return tuple(named)


def from_flags(settings: Iterable[str], problems: list[str]) -> Iterator[Setting]:
    """Yield the settings of ``KEY=VALUE`` texts; anything else is added to ``problems``."""
    for number, text in enumerate(settings, 1):
        key, equals, value = text.partition("=")
        if not equals or not key.strip():  # without the text, which may contain a password
            problems.append(f"--set (number {number}): expected KEY=VALUE")
        else:
            yield Setting(key.strip(), value.strip(), "--set")


def from_mapping(values: Mapping[str, object], problems: list[str]) -> Iterator[Setting]:
    """Yield the settings of a mapping; a value of a wrong type is added to ``problems``."""
    for key, value in values.items():
        if isinstance(value, bool):
            yield Setting(str(key), "true" if value else "false", "config")
        elif isinstance(value, str | int | float | Path):
            yield Setting(str(key), str(value), "config")
        else:
            problems.append(f"config: {key} must be text, a number, a bool or a path")


RELEASED_AT: Final = "LEVERET_RELEASED_AT"
"""Variable that tells the next image of a process when it gave its lease back, by the clock of its driver."""
_NOT_KEYS: Final = frozenset(
    ("LEVERET_CONFIG_FILE", "LEVERET_CTL_DATA_DIR", "LEVERET_RANDOM_PASSWORD", RELEASED_AT)
)
"""Variables that others read."""


def environment_name(key: str) -> str:
    """Return the variable for a key: ``confirm.mode`` is ``LEVERET_CONFIRM_MODE``."""
    return "LEVERET_" + key.upper().replace(".", "_")


def from_environment(environ: Mapping[str, str], warnings: list[str]) -> Iterator[Setting]:
    """Yield the settings of Leveret's variables; a LEVERET_* without a key causes a warning."""
    known = {environment_name(key.name): key.name for key in KEYS if "$" not in key.name}
    for variable in sorted(name for name in environ if name.startswith("LEVERET_")):
        if variable in known:
            yield Setting(known[variable], environ[variable], variable)
        elif variable.startswith(("LEVERET_LISTENERS_TCP_", "LEVERET_LISTENERS_SSL_")):
            kind, _, name = variable.removeprefix("LEVERET_LISTENERS_").lower().partition("_")
            yield Setting(f"listeners.{kind}.{name}", environ[variable], variable)
        elif variable not in _NOT_KEYS:
            # Not an error: a container platform sets such names for a service called leveret.
            warnings.append(f"environment variable {variable} does not match any configuration key; ignored")


_SECRETS: Final = frozenset((key.attribute or key.name).rpartition(".")[2] for key in KEYS if key.secret)
"""Names of attributes that are secrets."""


class ConfigError(Exception):
    """Raised if the configuration is invalid; ``problems`` has one sentence per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class Judged(NamedTuple):
    """A configuration with its settings, and what is wrong with it; with problems no broker starts with it.

    Of the settings that are `written`, the `obeyed` ones have a meaning here; each key is there once.
    """

    config: Config
    written: list[Setting]
    obeyed: list[Setting]
    problems: list[str]


def judge_settings(
    config_paths: Iterable[Path] = (),
    data_dir: Path | None = None,
    settings: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    values: Mapping[str, object] | None = None,
) -> Judged:
    """Create a ``Config`` as `load` does, also from an invalid configuration."""
    problems: list[str] = []
    draft = Draft(problems, [])
    written = written_settings(
        config_paths, data_dir, settings, environ or {}, problems, draft.warnings, values
    )
    for setting in decrypted(written, problems):
        draft.add(setting)
    obeyed = [each for each in {each.key: each for each in written}.values() if each.key in draft.obeyed]
    return Judged(config_of(draft), written, obeyed, problems)


def load(
    config_paths: Iterable[Path] = (),
    data_dir: Path | None = None,
    settings: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    values: Mapping[str, object] | None = None,
    amqp_port: int | None = None,
) -> Config:
    """Create a ``Config`` from files, the environment, ``KEY=VALUE`` settings and a mapping of keys to values.

    Without ``config_paths``, ``LEVERET_CONFIG_FILE`` or ``RABBITMQ_CONFIG_FILE`` in ``environ`` names a file, and
    ``RABBITMQ_CONFIG_FILES`` further ones. See ``values.read_file`` for paths other than files. The HTTP listeners
    follow ``amqp_port``, if it is given, unless their ports are set.

    Raises ConfigError with all problems.
    """
    judged = judge_settings(config_paths, data_dir, settings, environ, values)
    written, config = judged.written, judged.config
    if judged.problems:
        raise ConfigError(judged.problems)
    files = dict.fromkeys(setting.file.absolute() for setting in written if setting.file is not None)
    config = msgspec.structs.replace(config, files=tuple(files))
    return beside_amqp(config, amqp_port, {each.key for each in written}) if amqp_port else config


def beside_amqp(config: Config, amqp_port: int, given: Collection[str]) -> Config:
    """Return a configuration whose HTTP listeners are as far from a port for AMQP as usual, unless theirs are given."""
    moved = {}
    for name, usual in (("management", MANAGEMENT_PORT), ("prometheus", METRICS_PORT)):
        port = amqp_port + usual - DEFAULT_PORT
        if f"{name}.tcp.port" not in given and port <= MOST_PORT:
            moved[name] = msgspec.structs.replace(getattr(config, name), port=port, usual_port=port)
    return msgspec.structs.replace(config, **moved)


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
