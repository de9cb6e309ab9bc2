"""The pinned versions in requirements/ are those of the dependencies, and installed by `make` and the image."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOW = re.compile(r">=([\d.]+)")
FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))
NEEDED = {
    "run": PROJECT["dependencies"] + EXTRAS["ldap"] + EXTRAS["oauth2"] + EXTRAS["postgresql"] + EXTRAS["re2"],
    "analytics": PROJECT["dependencies"] + EXTRAS["analytics"],
    "build": (FOLDER / "build.in").read_text(encoding="utf-8").splitlines()[1:],
    "core": PROJECT["dependencies"] + EXTRAS["test-core"],
    "beside": (FOLDER / "beside.in").read_text(encoding="utf-8").splitlines()[1:],
    "lowest": PROJECT["dependencies"]
    + EXTRAS["ldap"]
    + EXTRAS["oauth2"]
    + EXTRAS["postgresql"]
    + EXTRAS["re2"]
    + EXTRAS["test-core"]
    + EXTRAS["top"],
    "test": PROJECT["dependencies"]
    + EXTRAS["test"]
    + EXTRAS["test-core"]
    + EXTRAS["docs"]
    + EXTRAS["ldap"]
    + EXTRAS["notebook"]
    + EXTRAS["oauth2"]
    + EXTRAS["top"],
}


def pinned(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return each package of a file: its version and marker, and its hashes."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (Requirement(line.partition("--hash")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
        for line in lines
    ]


def test_every_file_is_known():
    """Every file of pinned versions is made from sources that are checked here."""
    assert sorted(NEEDED) == FILES


@pytest.mark.parametrize("name", FILES)
def test_everything_is_pinned_with_its_hashes(name):
    """Each package has one exact version and hashes, and no file names an index or an address."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")

    assert [] == [
        str(package)
        for package, hashes in pinned(name)
        if not hashes or package.url or ["=="] != [each.operator for each in package.specifier]
    ]
    assert "//" not in text
    assert "index" not in text


@pytest.mark.parametrize("name", FILES)
def test_what_is_needed_is_pinned(name):
    """Every dependency has a pinned version that pyproject.toml allows; `make constraints` updates it."""
    versions = {}
    for package, _hashes in pinned(name):
        (only,) = package.specifier
        versions.setdefault(canonicalize_name(package.name), []).append(only.version)
    needed = [Requirement(line.partition("#")[0].strip()) for line in NEEDED[name]]
    wanted = [each for each in needed if each.name != PROJECT["name"]]

    assert [] == [
        str(each)
        for each in wanted
        if not any(version in each.specifier for version in versions.get(canonicalize_name(each.name), ()))
    ]


@pytest.mark.parametrize("name", [name for name in FILES if name not in {"test", "beside", "lowest"}])
def test_a_package_has_one_version(name):
    """A version in any file is that of the tests, so that everything installed to run has been tested."""
    tested = {(canonicalize_name(each.name), str(each.specifier)) for each, _hashes in pinned("test")}

    assert (
        set()
        == {(canonicalize_name(each.name), str(each.specifier)) for each, _hashes in pinned(name)} - tested
    )


def test_lower_bounds_are_those_that_are_tested():
    """The version of a dependency in lowest.txt is its lower bound in pyproject.toml; a bound may leave out zeros."""
    versions = {canonicalize_name(package.name): package.specifier for package, _hashes in pinned("lowest")}
    needed = [
        Requirement(line.partition("#")[0].strip())
        for line in NEEDED["lowest"]
        if line not in EXTRAS["test-core"]
    ]

    assert [] == [
        str(each)
        for each in needed
        if not re.match(
            rf"=={re.escape(LOW.search(str(each.specifier))[1])}(\.\d+)*$",
            str(versions[canonicalize_name(each.name)]),
        )
    ]


def test_a_cap_has_a_reason():
    """A dependency has no upper bound, unless a comment beside it names the release that breaks us."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = text[text.index("\ndependencies = [") : text.index("[project.scripts]")]
    capped = [line for line in dependencies.splitlines() if re.search(r'"[\w.-]+[^";#]*<', line)]

    assert [] == [line for line in capped if not re.search(r"# .*\d.* breaks", line)]


def test_make_and_the_image_install_them():
    """`make` and the image name the files, and have pip check hashes; the image installs nothing else from an index."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [line for line in re.split(r"&&|\n", dockerfile) if "pip install" in line]

    assert "--require-hashes $(patsubst %,-r requirements/%.txt,$(locked))" in makefile
    assert {"run", "build", "analytics"} == set(
        re.findall(r"--require-hashes -r requirements/(\w+)\.txt", dockerfile)
    )
    assert [] == [line for line in installs if "--require-hashes" not in line and "--no-index" not in line]
