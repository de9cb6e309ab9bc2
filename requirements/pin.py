"""Pins the dependencies of `pyproject.toml` in the files of this folder: `make constraints`.

Each file has versions with the hashes of their archives, for every version of Python and every system; no address of
an index, so that pip asks the one that the machine is set up for. Pins that still fit stay; `--upgrade` takes the
newest versions, `--upgrade-package NAME` that of one package. What is in two files has the same version in both.
"""
# ruff: noqa: INP001, S603 - a program, not a package; it runs uv with the words below

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = "pyproject.toml"
BUILD = "requirements/build.in"
EXTRAS = ["ldap", "oauth2", "postgresql", "re2", "test-core", "top"]
TOOLS = re.compile(r"^(?:hatchling|hypothesis|pytest[\w-]*)==\S+", re.MULTILINE)
FILES = {
    "test": [PROJECT, BUILD, "--extra", "test"],  # the largest first: the others take its versions
    "core": [PROJECT, BUILD, "--extra", "test-core"],
    "analytics": [PROJECT, "--extra", "analytics"],
    "run": [PROJECT, "--extra", "ldap", "--extra", "oauth2", "--extra", "postgresql", "--extra", "re2"],
    "build": [BUILD],
    "beside": ["requirements/beside.in"],
    "lowest": [PROJECT, BUILD, *(f"--extra={each}" for each in EXTRAS), "--resolution", "lowest-direct", "-"],
}
"""Name of a file -> what it is made of: `run` for the image of the broker, `analytics` with Spark, `build` to build the
package, `beside` for packages of others that tests install next to it, `lowest` for the lower bounds, but those of the
tools of the tests."""


def main(arguments: list[str]) -> None:
    """Write all files; the arguments go to uv for the first of them."""
    for name, sources in FILES.items():
        more = {"test": arguments, "lowest": []}.get(name, ["--constraint", "requirements/test.txt"])
        pinned = HERE / "test.txt"
        tools = TOOLS.findall(pinned.read_text(encoding="utf-8")) if name == "lowest" else []
        subprocess.run(
            [
                sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11",
                "--generate-hashes", "--no-annotate", "--custom-compile-command", "make constraints", *sources, *more,
                "--output-file", f"requirements/{name}.txt",
            ],
            input="\n".join(tools),
            text=True,
            cwd=HERE.parent,
            check=True,
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
