"""Downloads artefacts with their dependencies from Maven Central, by `mvn`."""

import shutil
import subprocess
from pathlib import Path

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>leveret</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""


class MavenError(Exception):
    """Raised when an artefact cannot be had; the text says why."""


def fetched(group: str, name: str, version: str, folder: Path) -> Path:
    """Return the directory below `folder` with an artefact and its dependencies, downloading them the first time.

    Raises:
        MavenError: java or mvn is missing, or the download failed.
    """
    if shutil.which("java") is None:
        message = "java (17 or newer) is not on the path, for instance Debian's default-jre-headless"
        raise MavenError(message)
    place = folder / f"{name}-{version}"
    if (place / f"{name}-{version}.jar").exists():
        return place
    if shutil.which("mvn") is None:
        message = f"{name} is fetched with mvn (Debian: maven), which is not on the path"
        raise MavenError(message)
    folder.mkdir(exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(POM.format(group=group, name=name, version=version))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={place}", "-DincludeScope=runtime"]
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["mvn failed"]
        message = f"{group}:{name}:{version} could not be fetched: {lines[0]}"
        raise MavenError(message)
    return place
