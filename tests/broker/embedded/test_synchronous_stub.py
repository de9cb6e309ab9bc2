"""The types of the synchronous API, which is made when it is imported: written here for type checkers and editors.

.venv/bin/python tests/broker/embedded/test_synchronous_stub.py --write
"""

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes.commands import execute

from leveret.broker.embedded import synchronous

STUB = Path(__file__).parents[3] / "broker/embedded/synchronous.pyi"
HEAD = """# Written by tests/broker/embedded/test_synchronous_stub.py; edit the asynchronous classes instead.
# ruff: noqa: A002, PYI021 - a field of AMQP is called `type`; editors show the docstrings"""
DOTTED = re.compile(r"((?:\w+\.)+)(\w+)")


class Stub:
    def __init__(self) -> None:
        self.imported: defaultdict[str, set[str]] = defaultdict(set)

    def code(self, text: str) -> str:
        """Return code in which each dotted name is one that is imported."""

        def short(found: re.Match[str]) -> str:
            module, name = found[1].removesuffix(".").removesuffix("._local"), found[2]
            if module != synchronous.__name__:
                self.imported[module].add(name)
            return name

        return DOTTED.sub(short, text)

    def signature(self, function: Any) -> str:
        text = str(inspect.signature(function))
        return self.code(re.sub(r"(?<!\.)\bSelf\b", "typing.Self", text))

    def members(self, cls: type) -> Iterator[str]:
        for name, member in vars(cls).items():
            if name.startswith("_") and name not in {"__init__", "__enter__", "__exit__"}:
                continue
            if isinstance(member, property):
                yield "@property"
            function = member.fget if isinstance(member, property) else member
            yield f"def {name}{self.signature(function)}:"
            yield f"    {docstring(member)}" if member.__doc__ else "    ..."

    def declaration(self, cls: type) -> str:
        bases = [
            self.code(inspect.formatannotation(base))
            for base in vars(cls).get("__orig_bases__", cls.__bases__)
        ]
        lines = [docstring(cls), *self.members(cls)]
        body = "\n".join(lines).replace("\n", "\n    ")
        return f"class {cls.__name__}({', '.join(bases)}):\n    {body}"


def docstring(of: Any) -> str:
    text = inspect.cleandoc(of.__doc__)
    return f'"""{text}{chr(10) * (chr(10) in text)}"""'


def stub() -> str:
    made = Stub()
    classes = [
        made.declaration(each)
        for each in vars(synchronous).values()
        if isinstance(each, type) and each.__module__ == synchronous.__name__
    ]
    imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in made.imported.items()]
    return formatted("\n".join([HEAD, *sorted(imports), *classes]))


def formatted(text: str) -> str:
    """Return code as the formatter writes it."""
    for arguments in (("check", "--quiet", "--fix-only", "--select=I"), ("format",)):
        text = execute(
            [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(STUB), "-"],
            input=text,
            check=True,
        ).stdout
    return text


def test_the_types_are_those_of_the_classes():
    """The committed stub is what the classes say."""
    assert STUB.read_text() == stub()


if __name__ == "__main__":
    if "--write" in sys.argv:
        STUB.write_text(stub())
    else:
        print(stub(), end="")
