"""The modules of the page without a browser: their types, and the tests of the pure ones."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from processes.commands import execute

from leveret.broker.page.assets import STATIC

NODE = shutil.which("node")
NPM = shutil.which("npm")
UNITS = Path(__file__).parent / "units"
TYPESCRIPT = "typescript@7.0.2"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leveret-tests" / TYPESCRIPT
OPTIONS = {
    "allowJs": True, "checkJs": True, "noEmit": True, "strict": True, "target": "es2022", "module": "esnext",
    "moduleResolution": "bundler", "lib": ["es2023", "dom", "dom.iterable"], "types": [],
}  # fmt: skip


@pytest.mark.skipif(NODE is None, reason="there is no node to run the modules of the page")
def test_pure_modules_do_what_their_tests_say(tmp_path):
    """Node runs them in a copy, in which files are modules as in the browser."""
    shutil.copytree(STATIC, tmp_path / "static")
    for each in UNITS.glob("*.test.js"):
        shutil.copy(each, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    done = execute([NODE, "--test"], cwd=tmp_path)

    assert 0 == done.returncode, done.stdout
    count = sum(each.read_text(encoding="utf-8").count("\ntest(") for each in UNITS.glob("*.test.js"))
    assert f"pass {count}\n" in done.stdout, done.stdout


@pytest.fixture(scope="session")
def tsc() -> str:
    """The checker of types: that of the machine, or one that npm fetches outside the tree."""
    found = shutil.which("tsc")
    if found:
        return found
    if NODE is None or NPM is None:
        pytest.skip("there is no node to check the types of the page")
    command = CACHE / "node_modules" / ".bin" / "tsc"
    if not command.exists():
        done = subprocess.run(
            [NPM, "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), TYPESCRIPT],
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode or not command.exists():
            pytest.skip("npm cannot fetch typescript to check the types of the page")
    return str(command)


def test_types_are_right(tsc, tmp_path):
    """Those in comments, strictly."""
    settings = {"compilerOptions": OPTIONS, "include": [f"{STATIC}/**/*.js"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = execute([tsc, "-p", str(tmp_path)], timeout=120)

    assert (0, "") == (done.returncode, done.stdout)
