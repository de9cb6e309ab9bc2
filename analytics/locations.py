"""Directories of input and output: paths of this machine, or URLs of Hadoop's file systems (`hdfs:`, `s3a:`, ...)."""

import dataclasses
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    # The command's options are parsed without Spark.
    from pyspark.sql import SparkSession

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_FILE: Final = re.compile(r"file:(?://)?(?=/)", re.IGNORECASE)
_BROKER: Final = re.compile(r"amqps?:", re.IGNORECASE)
_WILD: Final = re.compile(r"[*?{}\[\]\\]")  # glob characters of paths, which a backslash escapes
_LINES_OF_PARQUET: Final = 64
"""Bytes of lines for each byte of Parquet that `compact` makes of them: 70 for a day of 30 queues."""


@dataclasses.dataclass(frozen=True, slots=True)
class Remote:
    """A file or directory that is reached by a file system of Hadoop's, under its URL."""

    url: str

    def __truediv__(self, name: str) -> "Remote":
        return Remote(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    def resolve(self) -> "Remote":
        """Return it as it is: a URL is absolute."""
        return self


Location = Path | Remote


def parse(text: str) -> Location:
    """Return the location that a user means: a path, or a URL. `file:` is a path of this machine."""
    if local := _FILE.match(text):
        return Path(text[local.end() :])
    return Remote(text) if _URL.match(text) else Path(text)


def is_broker(place: Location | None) -> bool:
    """Return whether a location is a broker, whose telemetry is a stream."""
    return isinstance(place, Remote) and _BROKER.match(place.url) is not None


def url(place: Location) -> str:
    """Return the URL for Spark to write to; not `Path.as_uri`, as Spark does not decode `%3D`."""
    return place.url if isinstance(place, Remote) else f"file://{place}"


def source(place: Location) -> str:
    """Return the escaped form of an absolute location for Spark to read from, which takes it for a glob pattern."""
    return _WILD.sub(r"\\\g<0>", url(place))


def exists(spark: "SparkSession", place: Location) -> bool:
    """Return whether there is such a file or directory."""
    if isinstance(place, Path):
        return place.exists()
    path, system = _hadoop(spark, place)
    return bool(system.exists(path))


def has_files(spark: "SparkSession", folder: Location, suffix: str) -> bool:
    """Return whether a directory, or one below it, has finished files of a format."""
    if isinstance(folder, Path):
        return any(
            path.suffix == f".{suffix}" and not path.name.startswith((".", "_")) for path, _ in files(folder)
        )
    path, system = _hadoop(spark, folder)
    if not system.exists(path):
        return False
    found = system.listFiles(path, True)
    while found.hasNext():
        name = found.next().getPath().getName()
        if name.endswith(f".{suffix}") and not name.startswith((".", "_")):
            return True
    return False


def size_of(folder: Location) -> int | None:
    """Return the size of the rows below a directory of this machine, in bytes as lines; None if it is elsewhere."""
    if isinstance(folder, Remote):
        return None
    return sum(
        status.st_size * (_LINES_OF_PARQUET if path.suffix == ".parquet" else 1)
        for path, status in files(folder)
    )


def files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files below a directory; a broker that runs may rename or remove any, and its directory."""
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status


def text_of(spark: "SparkSession", file: Location) -> str | None:
    """Return the content of a small text file; None if there is none."""
    if not exists(spark, file):
        return None
    if isinstance(file, Path):
        return file.read_text(encoding="utf-8")
    return "\n".join(row["value"] for row in spark.read.text(source(file), wholetext=True).collect())


def upload(spark: "SparkSession", folder: Path, target: Remote) -> None:
    """Copy all files below a directory of this machine, in place of those of the same names."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            path, system = _hadoop(spark, target / str(file.relative_to(folder)))
            system.copyFromLocalFile(False, True, _path(spark, url(file)), path)


def _path(spark: "SparkSession", place: str) -> Any:
    return spark._jvm.org.apache.hadoop.fs.Path(place)  # type: ignore[union-attr]  # noqa: SLF001 - no other way


def _hadoop(spark: "SparkSession", place: Remote) -> tuple[Any, Any]:
    """Return a path and its file system, as Java objects."""
    path = _path(spark, place.url)
    context = spark.sparkContext._jsc  # noqa: SLF001 - as above
    return path, path.getFileSystem(context.hadoopConfiguration())
