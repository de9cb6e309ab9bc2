"""Files whose names come from elsewhere are read by one function, which neither waits nor reads without a bound."""

import ast
import re
from fnmatch import fnmatchcase
from functools import cache

from test_layering import ROOT, sources

READER = "broker.process.named_files"
OWN = {
    READER: "the reader itself; the writer checks what is there before",
    "broker.tls.context": "gives OpenSSL copies of what the reader has read",
    "analytics.*": "commands of their own, which end with whoever types them; the broker imports none of it",
    "leveret.export": "a library that its caller gives a file",
    "storage.*": "files of the data directory, by names of our own; bodies and the store check what they open",
    "broker.page.assets": "files of the package",
    "broker.process.resource_alarms": "/proc and /sys",
    "broker.process.logs": "the broker's own log, just renamed",
    "broker.persistence.backup": "creates its mark in a directory that it has made",
    "broker.embedded.core": "/dev/null",
    "broker.export.writer": "creates files; reads those that it has written",
    "broker.cli.startup": "writes the pid file, which the configuration names",
    "broker.http.running_brokers": "writes into a directory that it has found to be private",
    "broker.cli.ctl.health": "the end of a log, in a command",
    "broker.replication.node_driver": "the log of changes in the data directory",
    "broker.placement.questions": "directories of processes of its own",
}
"""Modules that open files by themselves, and why they may."""
READS = {"read_bytes", "read_text", "write_bytes", "write_text"}
CERTIFICATES = {"load_cert_chain", "load_verify_locations", "load_dh_params"}
MODE = re.compile("[rwaxbt+]{1,4}")


def opening(call: ast.Call) -> str:
    """Return the name of a function that opens a file, if a call is one of it; '' otherwise."""
    function = call.func
    if isinstance(function, ast.Name):
        return "open" if function.id == "open" else ""
    if not isinstance(function, ast.Attribute):
        return ""
    name, owner = function.attr, function.value
    of = owner.id if isinstance(owner, ast.Name) else ""
    if name in READS | CERTIFICATES and not (
        name == "write_text" and len(call.args) == 1 and of == "formatter"
    ):
        return name
    if name == "create_default_context":
        return name if any(each.arg in {"cafile", "capath"} for each in call.keywords) else ""
    mode = call.args[0] if call.args else None
    has_mode = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and MODE.fullmatch(mode.value)
    keywords = {each.arg for each in call.keywords}
    if name == "open" and (of in {"os", "gzip", "aiofiles", "io"} or has_mode or "encoding" in keywords):
        return name
    return ""


@cache
def opened() -> list[tuple[str, str]]:
    """Return each call that opens a file: its module, and `file:line name`."""
    return [
        (module, f"{path.relative_to(ROOT)}:{node.lineno} {name}")
        for module, path in sources(ROOT).items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and (name := opening(node))
    ]


def test_only_the_reader_opens_what_others_have_named():
    """A module that opens a file by itself is listed with the reason; all others use `read_named`."""
    found = [where for module, where in opened() if not any(fnmatchcase(module, each) for each in OWN)]

    assert [] == found


def test_no_exception_is_left_over():
    """Each listed module still opens a file."""
    modules = {module for module, _ in opened()}
    left = {each for each in OWN if not any(fnmatchcase(module, each) for module in modules)}

    assert set() == left
