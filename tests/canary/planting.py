"""Plants a secret that can be searched for into a copy of the project: into its tests, its defaults, and the clients.

Tests have plain secrets, as `guest`, which are names of users, too, and cannot be searched for. Rules replace them in the
text of the copy, where they are written. A rule that finds nothing is an error: it says that its secret is written in
another way now.
"""

import re
import secrets
import shutil
import string
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PART = 10
"""Letters in each half of the secret."""
CLIENTS = ("pika", "aiormq", "amqp", "kombu", "amqpstorm")
"""Packages of clients with the password `guest` for whoever gives none; they are copied beside the project."""


class Word(NamedTuple):
    """A secret: two random halves, and between them a character that is quoted in URLs and in forms."""

    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.left}!{self.right}"

    def halves(self) -> Mapping[str, bytes]:
        return {"first half": self.left.encode(), "second half": self.right.encode()}


def chosen() -> Word:
    """Return a new secret; it begins with a letter, so that no escape before it goes on in it."""
    letters = string.ascii_lowercase
    left, right = (
        secrets.choice("kmnpqrstvw")
        + "".join(secrets.choice(letters + string.digits) for _ in range(PART - 1))
        for _ in range(2)
    )
    return Word(left, right)


class Rule(NamedTuple):
    """A way in which a secret is written.

    Attributes:
        title: of which secret.
        files: where, as patterns of paths in the copy.
        pattern: the text.
        replacement: the new text, in which `<secret>` is the secret.

    """

    title: str
    files: tuple[str, ...]
    pattern: str
    replacement: str


TESTS = ("tests/**/*.py", "docs/**/*.md", "bench/*.py")
RULES = (
    # The default of the broker: of its configuration, and of the programs that log in without being told how.
    Rule("default password", ("broker/config/sections.py",), r'UserConfig\("guest", "guest"', r'UserConfig("guest", "<secret>"'),
    Rule("default password", ("broker/config/sections.py",), r'"default_pass", default="guest"', '"default_pass", default="<secret>"'),
    Rule("default password", ("broker/config/combined.py",), r'"default_pass", "guest"', '"default_pass", "<secret>"'),
    Rule("default password", ("broker/auth/users.py",), r"Password\(_GUEST\)", 'Password("<secret>")'),
    Rule("password of our clients", ("broker/client/uri.py",), r'password: str = field\(default="guest"',
         'password: str = field(default="<secret>"'),
    Rule("password of our clients", ("broker/cli/ctl/client.py", "tests/services/shovelling.py"),
         r"parts\.password or 'guest'", "parts.password or '<secret>'"),
    # Clients of others.
    Rule("password of pika", ("pika/connection.py",), "DEFAULT_PASSWORD = 'guest'", "DEFAULT_PASSWORD = '<secret>'"),
    Rule("password of aiormq", ("aiormq/auth.py",), 'password or "guest"', 'password or "<secret>"'),
    Rule("password of py-amqp", ("amqp/connection.py",), "password='guest'", "password='<secret>'"),
    Rule("password of kombu", ("kombu/transport/pyamqp.py",), "'password': 'guest'", "'password': '<secret>'"),
    Rule("password of amqpstorm", ("amqpstorm/uri_connection.py",), "password or 'guest'", "password or '<secret>'"),
    # The user guest in tests.
    Rule("login of guest", (*TESTS, "broker/cli/perf.py", "broker/embedded/*.py"), r"guest:guest\b", "guest:<secret>"),
    Rule("login of guest", TESTS, r"(\\0|\\x00)guest\1guest\b", r"\1guest\1<secret>"),
    Rule("login of guest", TESTS, r"username=guest&password=guest\b", "username=guest&password=<secret>"),
    Rule("login of guest", TESTS, r"(['\"])guest\1, (\w+=)?(['\"])guest\3(?!, \"rmq)", r"\1guest\1, \2\3<secret>\3"),
    Rule("login of guest", TESTS, r'password(: str)? = "guest"', r'password\1 = "<secret>"'),
    Rule("login of guest", TESTS, r'(["\']password["\']: )"guest"', r'\1"<secret>"'),
    Rule("login of guest", TESTS, r'password="guest"', 'password="<secret>"'),
    Rule("login of guest", ("tests/conformance/rows_handshake.py",),
         r"PASSWORDS\\x00\\x00\\x00\\x05guest", r"PASSWORDS\\x00\\x00\\x00\\x15<secret>"),
    Rule("login of guest", ("tests/security/test_limits.py",), r'Password\("guest"\)', 'Password("<secret>")'),
    Rule("login of a user whose password is the name", TESTS, r"\\0\{user\}\\0\{user\}",
         r"\\0{user}\\0{'<secret>' if user == 'guest' else user}"),
    Rule("login of a user whose password is the name", TESTS, r"(login\(user|start_ok\(user|login\(name), (user|name)\b",
         r"\1, '<secret>' if \2 == 'guest' else \2"),
    Rule("login of a user whose password is the name", TESTS, r"\{password or user\}",
         "{password or ('<secret>' if user == 'guest' else user)}"),
    Rule("login of a user whose password is the name", TESTS, "user if password is None else",
         "('<secret>' if user == 'guest' else user) if password is None else"),
    Rule("hash of guest", ("tests/conformance/brokers.py",), r"salt \+ user\.name\.encode\(\)",
         'salt + ("<secret>" if user.name == "guest" else user.name).encode()'),
    Rule("default password of RabbitMQ", ("bench/brokers.py",), r"127\.0\.0\.1:\{port\}\", \*lines\]",
         '127.0.0.1:{port}", "default_pass = <secret>", *lines]'),
    Rule("new secret", TESTS, r'(new_secret=|update_secret\()"guest"', r'\1"<secret>"'),
    # Other users, and secrets of other services: of directories, providers, shovels, keys.
    Rule("passwords that end with -secret", ("tests/**/*.py",),
         r"(?i)(?<!update)(?<!renewed)-secret(?![\w-]|\.1)", r"\g<0><secret>"),
    Rule("passwords that end with -password", ("tests/**/*.py",), r"canary-password\b", "canary-password<secret>"),
    Rule("canaries of single tests", ("tests/**/*.py",), r"s3cret-canary|hunter2", r"\g<0><secret>"),
    Rule("logins in URIs of shovels", ("tests/**/*.py",), r"(amqps?://\w+:)(secret)@", r"\1\2<secret>@"),
)  # fmt: skip


class PlantingError(Exception):
    """A rule found nothing, or the project cannot be copied."""


def plant(root: Path, tree: Path, word: Word) -> dict[str, bytes]:
    """Copy a project with the secret in the places of its rules; returns the contents of the files that have it.

    Args:
        root: the project, a working tree of git.
        tree: the copy; must not exist.
        word: the secret.

    Raises:
        PlantingError: if git does not know the files, or a rule finds nothing.

    """
    _copy(root, tree)
    for name in CLIENTS:
        shutil.copytree(Path(sysconfig.get_path("purelib"), name), tree / name)
    planted: dict[str, bytes] = {}
    for rule in RULES:
        count = 0
        for path in sorted({path for each in rule.files for path in tree.glob(each) if path.is_file()}):
            text = path.read_text(encoding="utf-8")
            changed, times = replaced(text, rule, word)
            if times:
                path.write_text(changed, encoding="utf-8")
                planted[str(path.relative_to(tree))] = changed.encode()
                count += times
        if not count:
            raise PlantingError(f"{rule.title}: {rule.pattern} is nowhere in {', '.join(rule.files)}")
    return planted


def replaced(text: str, rule: Rule, word: Word) -> tuple[str, int]:
    """Return a text with the secret where a rule says, and the number of places."""

    def new(found: re.Match[str]) -> str:
        return found.expand(rule.replacement).replace("<secret>", str(word))

    return re.subn(rule.pattern, new, text)


def _copy(root: Path, tree: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if listed.returncode:
        raise PlantingError(f"git ls-files: {listed.stderr.strip()}")
    for name in filter(None, listed.stdout.split("\0")):
        source, target = root / name, tree / name
        if source.is_symlink() or source.is_file():  # not what was deleted and is not committed yet
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
