"""Writes docs/python-api.md from the signatures and docstrings of the public Python API."""

import inspect
import re
import textwrap
from collections.abc import Iterator

import leveret
from leveret import export, pytest_plugin
from leveret.broker.embedded.faults import Fault, Faults
from leveret.broker.embedded.synchronous import Tail, ThreadClock

_HEAD = """\
# Python API

Written by `make docs` from the docstrings. These pages introduce the classes with programs:
[embed the broker](howto/embed-the-broker.md), [test an application](howto/test-an-application.md),
[export](export.md#in-python). `import leveret` loads a class when it is first used.
"""
_CLASSES = (
    leveret.Broker,
    leveret.VHost,
    leveret.QueueView,
    Tail,
    ThreadClock,
    Faults,
    Fault,
    leveret.MessageView,
)
_PAIRS = ((leveret.Broker, leveret.AsyncBroker), (leveret.QueueView, leveret.AsyncQueueView))
_FIXTURES = ("leveret", "leveret_url", "leveret_broker", "leveret_celery_config", "leveret_session_broker")
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ITEM = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
_PATH = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
"""The module in front of the name of a class."""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for each in _CLASSES:
        parts += _of_class(each)
    parts += [
        "## The asynchronous API",
        _asynchronous(),
        "## Errors",
        *_errors(),
        "## pytest fixtures",
        *_fixtures(),
    ]
    parts += [
        "## leveret.export",
        *[_entry(name, getattr(export, name)) for name in export.__all__ if name.islower()],
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _of_class(cls: type) -> Iterator[str]:
    yield f"## {cls.__name__.removeprefix('Thread')}"
    inherited: set[str] = set()
    if cls is leveret.Broker:
        yield f"`{cls.__name__}{_signature(cls)}`"
        inherited = set(dir(leveret.VHost))
    yield _prose(inspect.getdoc(cls) or "")
    for name in sorted(set(dir(cls)) - inherited):
        found = inspect.getattr_static(cls, name)
        if (
            not name.startswith("_")
            and inspect.getdoc(found)
            and (callable(found) or isinstance(found, property))
        ):
            yield _entry(name, found)


def _entry(name: str, found: object) -> str:
    shown = "A property." if isinstance(found, property) else f"`{name}{_signature(found)}`"
    return f"### {name}\n\n{shown}\n\n{_prose(inspect.getdoc(found) or '')}"


def _signature(found: object) -> str:
    signature = inspect.signature(found)  # type: ignore[arg-type]
    kept = [each for each in signature.parameters.values() if each.name != "self"]
    text = str(signature.replace(parameters=kept))
    return (
        _PATH.sub("", text.replace("'pa.Table'", "Table"))
        .replace("datetime.datetime", "datetime")
        .replace(" -> None", "")
    )


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: its paragraphs, and its sections as lists."""
    first = _SECTION.search(doc)
    parts = [doc[: first.start() if first else len(doc)].strip()]
    for title, body in _SECTION.findall(doc):
        text = textwrap.dedent(body).strip()
        items = [f"- `{name}`: {' '.join(said.split())}" for name, said in _ITEM.findall(text)]
        parts.append("\n".join(items) if items else " ".join(text.split()))
        if title == "Raises":
            parts[-1] = f"Raises:\n\n{parts[-1]}"
    return "\n\n".join(part for part in parts if part)


def _asynchronous() -> str:
    lines = ["The asynchronous classes have the same methods as coroutines, in the running loop."]
    for plain, other in _PAIRS:
        properties = sorted(
            f"`{name}()`"
            for name in dir(plain)
            if isinstance(inspect.getattr_static(plain, name), property)
            and inspect.iscoroutinefunction(inspect.getattr_static(other, name, None))
        )
        lines.append(
            f"Of `{other.__name__}` these are coroutines, and properties above: {', '.join(properties)}."
        )
    return "\n".join(lines)


def _errors() -> Iterator[str]:
    names = [name for name in leveret.__all__ if name.endswith("Error")]
    yield "\n".join(
        f"- `{name}`: {' '.join((inspect.getdoc(getattr(leveret, name)) or '').split())}"
        for name in sorted(names)
    )


def _fixtures() -> Iterator[str]:
    found = {name: getattr(pytest_plugin, name) for name in _FIXTURES}
    docs = {name: inspect.getdoc(getattr(each, "__wrapped__", each)) or "" for name, each in found.items()}
    yield "\n".join(f"- `{name}`: {' '.join(doc.split())}" for name, doc in docs.items())
