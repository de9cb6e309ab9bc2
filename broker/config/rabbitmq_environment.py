"""RabbitMQ's environment: variables, rabbitmq-env.conf, the list of plugins, advanced.config.

All of it is obeyed, harmless, warned of or refused, as `broker.config.foreign_keys` says. A variable of RabbitMQ's
without a row is harmless; others that begin with RABBITMQ_ are those of applications and container platforms.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from leveret.broker.config.erlang_config import SUFFIX, argument_settings, file_settings
from leveret.broker.config.foreign_keys import FOREIGN_PLUGINS, FOREIGN_VARIABLES, PLUGINS, first_row, judge
from leveret.broker.config.values import DEFAULT_PORT, Setting, read_text
from leveret.broker.erlang_terms import parsed

RABBITMQ_VARIABLES: Final = {  # variables, and the keys that they set
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
    "RABBITMQ_NODENAME": "node_name",
    "RABBITMQ_MNESIA_BASE": "data_dir",
    "RABBITMQ_MNESIA_DIR": "data_dir",
    "RABBITMQ_LOG_BASE": "log.dir",
    "RABBITMQ_PID_FILE": "pid_file",
}
ARGUMENTS: Final = (  # arguments of Erlang's virtual machine, among which are settings of applications
    "RABBITMQ_SERVER_ERL_ARGS",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
    "RABBITMQ_SERVER_START_ARGS",
)
ENV_FILE: Final = "RABBITMQ_CONF_ENV_FILE"
ADVANCED: Final = "RABBITMQ_ADVANCED_CONFIG_FILE"
ENABLED_PLUGINS: Final = "RABBITMQ_ENABLED_PLUGINS"
ENABLED_PLUGINS_FILE: Final = "RABBITMQ_ENABLED_PLUGINS_FILE"
_ASSIGNMENT: Final = re.compile(
    r"\s*(?:export\s+)?(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>'[^'$`]*'|\"[^\"$`\\]*\"|[^\s'\"$`\\;&|]*)(?:\s+#.*)?\s*"
)


def with_env_file(environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> Mapping[str, str]:
    """Return the environment with the variables of rabbitmq-env.conf, which need not begin with RABBITMQ_.

    The environment wins, as in RabbitMQ. Of the language of the shell only assignments of plain values are read.
    """
    name = environ.get(ENV_FILE)
    text = read_text(Path(name), problems, may_miss=True) if name else None
    if text is None:
        return environ
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if assigned := _ASSIGNMENT.fullmatch(line):
            found[f"RABBITMQ_{assigned['name'].removeprefix('RABBITMQ_')}"] = assigned["value"].strip("'\"")
        else:
            warnings.append(f"{name}:{number}: only NAME=value is read of the shell's language; ignored")
    return {**found, **environ}


def settings_of(environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> Iterator[Setting]:
    """Yield the settings of RabbitMQ's variables, and of the files that they name beside rabbitmq.conf.

    `problems` gets a sentence about each that protects something and has no effect, `warnings` about each other one.
    """
    if name := environ.get(ADVANCED):
        yield from file_settings(Path(name if name.endswith(SUFFIX) else name + SUFFIX), problems)
    for variable in ARGUMENTS:
        yield from argument_settings(environ.get(variable, ""), variable, problems)
    port, host = environ.get("RABBITMQ_NODE_PORT"), environ.get("RABBITMQ_NODE_IP_ADDRESS")
    if port or host:
        host = f"[{host}]" if host and ":" in host else host
        listener = f"{host}:{port or DEFAULT_PORT}" if host else str(port)
        yield Setting("listeners.tcp.default", listener, "RABBITMQ_NODE_PORT")
    for variable, key in RABBITMQ_VARIABLES.items():
        if value := environ.get(variable):
            yield Setting(key, value, variable)
    if logs := environ.get("RABBITMQ_LOGS"):
        # '-' is the console and overrides log.*; otherwise it is the name of the file.
        yield Setting("log.console", "true" if logs == "-" else "false", "RABBITMQ_LOGS")
        yield Setting("log.file", "false" if logs == "-" else logs, "RABBITMQ_LOGS")
    for variable in sorted(name for name in environ if name.startswith("RABBITMQ_")):
        row = first_row(FOREIGN_VARIABLES, variable)
        if row is not None and environ[variable]:
            judge(row, f"environment variable {variable}", environ[variable], problems, warnings)
    _judge_plugins(environ, problems, warnings)


def _judge_plugins(environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> None:
    names = {each.strip(): ENABLED_PLUGINS for each in environ.get(ENABLED_PLUGINS, "").split(",")}
    file = environ.get(ENABLED_PLUGINS_FILE)
    text = read_text(Path(file), problems, may_miss=True) if file else None
    if text and text.strip():
        try:
            listed = parsed(text)
        except ValueError as error:
            problems.append(f"cannot read {file}: {error}")
        else:
            names |= {str(each): str(file) for each in (listed if isinstance(listed, list) else [listed])}
    for name, origin in names.items():
        if name and name not in PLUGINS and (row := first_row(FOREIGN_PLUGINS, name)) is not None:
            judge(row, f"{origin}: {name}", "", problems, warnings)
