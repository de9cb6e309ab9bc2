"""The Dockerfile keeps the rules that its usual linter (hadolint) has, and copies what there is.

The linter is a binary that not every machine has, so the rules that matter here are written down: each is a function that
reports what is wrong, and has a planted violation.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import yaml
from processes.running import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"
KNOWN = {
    "FROM", "ARG", "RUN", "COPY", "ADD", "ENV", "WORKDIR", "VOLUME", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT",
    "CMD", "LABEL", "STOPSIGNAL", "SHELL",
}  # fmt: skip
PORTS = 65535


class Line(NamedTuple):
    """One instruction."""

    word: str
    rest: str


class Stage(NamedTuple):
    """A FROM and what follows it."""

    base: str
    name: str
    lines: list[Line]

    def of(self, word: str) -> list[str]:
        """Return the rest of each line that begins with this word."""
        return [line.rest for line in self.lines if line.word == word]

    def commands(self) -> list[list[str]]:
        """The single commands of all RUN lines, as words."""
        return [shlex.split(part) for run in self.of("RUN") for part in re.split(r"&&|;|\|\|", run)]


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile: comments dropped, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: list[Stage] = []
    given: dict[str, str] = {}  # arguments before the first stage
    for line in filter(str.strip, "\n".join(lines).replace("\\\n", " ").splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(given.get(base.strip("${}"), base), name, []))
        elif word == "ARG" and not found:
            argument, _, default = rest.partition("=")
            given[argument] = default
        else:
            found[-1].lines.append(Line(word, " ".join(rest.split())))
    return found


def instructions(all_stages: list[Stage]) -> Iterator[str]:
    """Only known instructions; COPY instead of ADD; no deprecated MAINTAINER (DL3020, DL4000)."""
    words = [line.word for stage in all_stages for line in stage.lines]
    yield from (f"{word} is no instruction" for word in words if word not in KNOWN)
    yield from ("ADD: use COPY" for word in words if word == "ADD")


def pinned_bases(all_stages: list[Stage]) -> Iterator[str]:
    """A base is an earlier stage, or has a tag other than latest (DL3006, DL3007); stages have names (DL3024)."""
    names = [stage.name for stage in all_stages]
    for number, stage in enumerate(all_stages):
        if not stage.name or stage.name in names[:number]:
            yield f"stage {number} has no name of its own"
        if stage.base not in names[:number] and not re.search(r":(?!latest$)\S+$", stage.base):
            yield f"{stage.base} has no tag"
    if 1 < len({stage.base for stage in all_stages if stage.base not in names}):
        yield "what was built for one base runs on another"


def users(all_stages: list[Stage]) -> Iterator[str]:
    """An image that has an entry point does not run as root (DL3002), and says so with a number."""
    for stage in all_stages:
        if stage.of("ENTRYPOINT") and not re.fullmatch(r"[1-9]\d*", (stage.of("USER") or [""])[-1]):
            yield f"{stage.name} runs as root, or as a user without a number"


def starts(all_stages: list[Stage]) -> Iterator[str]:
    """ENTRYPOINT and CMD are there once each, as lists, so that no shell stands before the broker (DL3025, DL4003)."""
    for stage in all_stages:
        for word in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
            found = stage.of(word)
            if 1 < len(found):
                yield f"{stage.name} has {len(found)} of {word}"
            for rest in found:
                try:
                    words = json.loads(rest[rest.index("[") :])
                except ValueError:
                    yield f"{word} of {stage.name} is no list"
                else:
                    if not all(isinstance(each, str) for each in words):
                        yield f"{word} of {stage.name} is no list of texts"


def packages(all_stages: list[Stage]) -> Iterator[str]:
    """The package managers ask nothing, install nothing more and leave no caches (DL3004, 3009, 3014, 3015, 3027, 3042)."""
    for stage in all_stages:
        for words in stage.commands():
            if words[:1] in (["sudo"], ["apt"], ["cd"]):
                yield f"{words[0]} has no place here"
            if words[:2] == ["apt-get", "install"]:
                if not {"--yes", "--no-install-recommends"} <= set(words):
                    yield "apt-get install asks, or installs more"
                if not any(
                    "rm -rf /var/lib/apt/lists/*" in run for run in stage.of("RUN") if "apt-get" in run
                ):
                    yield "apt-get leaves its lists"
            if "install" in words and words[0].endswith("pip") and "--no-cache-dir" not in words:
                yield "pip leaves its cache"


def ports(all_stages: list[Stage]) -> Iterator[str]:
    """EXPOSE names ports that exist (DL3011)."""
    for port in " ".join(rest for stage in all_stages for rest in stage.of("EXPOSE")).split():
        if not (port.isdecimal() and 0 < int(port) <= PORTS):
            yield f"{port} is no port"


def places(all_stages: list[Stage]) -> Iterator[str]:
    """WORKDIR is absolute (DL3000); COPY is to an absolute place or after a WORKDIR (DL3045), from earlier (DL3022)."""
    for number, stage in enumerate(all_stages):
        yield from (f"WORKDIR {rest} is relative" for rest in stage.of("WORKDIR") if not rest.startswith("/"))
        anchored = False
        for line in stage.lines:
            anchored = anchored or line.word == "WORKDIR"
            if line.word != "COPY":
                continue
            words = line.rest.split()
            if not anchored and not words[-1].startswith("/"):
                yield f"COPY to {words[-1]}, wherever that is"
            source = next(
                (word.removeprefix("--from=") for word in words if word.startswith("--from=")), None
            )
            if source is not None and source not in [earlier.name for earlier in all_stages[:number]]:
                yield f"COPY from {source}, which is no earlier stage"


Rule = Callable[[list[Stage]], Iterator[str]]
RULES: list[Rule] = [instructions, pinned_bases, users, starts, packages, ports, places]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_dockerfile_keeps_the_rules(rule):
    """The Dockerfile violates none of the rules."""
    assert [] == list(rule(stages(DOCKERFILE.read_text())))


HEAD = "FROM a:1 AS x\n"


@pytest.mark.parametrize(
    ("rule", "text", "problem"),
    [
        (instructions, HEAD + "MAINTAINER me", "MAINTAINER is no instruction"),
        (instructions, HEAD + "ADD a /b", "ADD: use COPY"),
        (pinned_bases, "FROM a AS x", "a has no tag"),
        (pinned_bases, "FROM a:latest AS x", "a:latest has no tag"),
        (pinned_bases, HEAD + "FROM b AS y\nFROM x AS x", "stage 2 has no name of its own"),
        (pinned_bases, "FROM a:1", "stage 0 has no name of its own"),
        (pinned_bases, HEAD + "FROM a:2 AS y", "what was built for one base runs on another"),
        (users, HEAD + 'ENTRYPOINT ["a"]', "x runs as root, or as a user without a number"),
        (
            users,
            HEAD + 'USER 9\nUSER root\nENTRYPOINT ["a"]',
            "x runs as root, or as a user without a number",
        ),
        (starts, HEAD + "CMD leveret serve", "CMD of x is no list"),
        (starts, HEAD + "CMD [1]", "CMD of x is no list of texts"),
        (starts, HEAD + 'CMD ["a"]\nCMD ["b"]', "x has 2 of CMD"),
        (packages, HEAD + "RUN a && sudo b", "sudo has no place here"),
        (
            packages,
            HEAD + "RUN apt-get update && apt-get install x",
            "apt-get install asks, or installs more",
        ),
        (packages, HEAD + "RUN apt-get install \\\n  x", "apt-get leaves its lists"),
        (packages, HEAD + "RUN a/pip install x", "pip leaves its cache"),
        (ports, HEAD + "EXPOSE 5672 65536", "65536 is no port"),
        (places, HEAD + "WORKDIR a", "WORKDIR a is relative"),
        (places, HEAD + "COPY a b", "COPY to b, wherever that is"),
        (places, HEAD + "COPY --from=y a /b\nFROM a:1 AS y", "COPY from y, which is no earlier stage"),
    ],
)
def test_a_planted_violation_is_found(rule, text, problem):
    """Each rule reports its planted violation."""
    assert problem in list(rule(stages(text)))


def broker_stage() -> Stage:
    """The image that is built when none is named."""
    return stages(DOCKERFILE.read_text())[-1]


def test_the_broker_is_the_default_image():
    """The default target is the broker, with its ports, its volume, its check and its entry point."""
    stage = broker_stage()

    assert "broker" == stage.name
    assert ["5672 15692"] == stage.of("EXPOSE")
    assert ["/var/lib/rabbitmq"] == stage.of("VOLUME")
    assert ['["/usr/local/share/leveret/entrypoint.sh"]'] == stage.of("ENTRYPOINT")
    assert ['CMD ["python", "/usr/local/share/leveret/healthcheck.py"]'] == [
        re.sub(r"--\S+ ", "", rest) for rest in stage.of("HEALTHCHECK")
    ]


def copied() -> list[str]:
    """Return the paths that the Dockerfile takes from the checkout."""
    return [
        source
        for stage in stages(DOCKERFILE.read_text())
        for rest in stage.of("COPY")
        if "--from=" not in rest
        for source in rest.split()[:-1]
    ]


def test_what_is_copied_is_there_and_not_ignored():
    """Each file and folder that is copied exists, and .dockerignore lets it through, and nothing else."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()

    assert "*" in ignored
    assert [] == [source for source in copied() if not (ROOT / source).exists()]
    assert sorted(set(copied())) == sorted(line[1:] for line in ignored if line.startswith("!"))


def test_the_packages_that_ship_are_copied():
    """The image is built of the packages that the wheel has."""
    packages_of_wheel = re.search(
        r"^only-include = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )

    assert set(json.loads(packages_of_wheel[1])) <= set(copied())


def test_the_entry_point_may_be_executed():
    """The entry point's mode comes from the checkout into the image."""
    assert 0o111 == (ROOT / "docker" / "entrypoint.sh").stat().st_mode & 0o111


@pytest.mark.parametrize("service", ["broker", "analyze"])
def test_volumes_belong_to_the_images_user(service):
    """A volume is mounted on a folder of the image's user: a new volume takes its owner from the first mount."""
    described = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"][service]
    (stage,) = (each for each in stages(DOCKERFILE.read_text()) if each.name == described["build"]["target"])
    made = {
        word
        for words in stage.commands()
        if {"install", "--directory", "--owner=leveret"} <= set(words)
        for word in words
    }

    assert ["999"] == stage.of("USER")
    assert {volume.split(":")[1] for volume in described["volumes"]} <= made
