"""The Dockerfile keeps rules that its linter does not have (tests/docker/test_linters.py), and copies what there is."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml
from processes.running import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"


class Line(NamedTuple):
    word: str
    rest: str


class Stage(NamedTuple):
    """A FROM and what follows it."""

    base: str
    name: str
    lines: list[Line]

    def of(self, word: str) -> list[str]:
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


def bases(all_stages: list[Stage]) -> Iterator[str]:
    """Every stage has a name; what is no earlier stage is one image, whose tag is not the latest."""
    yield from (f"stage {number} has no name" for number, stage in enumerate(all_stages) if not stage.name)
    images = {stage.base for stage in all_stages} - {stage.name for stage in all_stages}
    yield from (f"{image} has no tag" for image in images if not re.search(r":(?!latest$)\S+$", image))
    if 1 < len(images):
        yield "what was built for one base runs on another"


def users(all_stages: list[Stage]) -> Iterator[str]:
    """An image that has an entry point does not run as root, and says so with a number."""
    for stage in all_stages:
        if stage.of("ENTRYPOINT") and not re.fullmatch(r"[1-9]\d*", (stage.of("USER") or [""])[-1]):
            yield f"{stage.name} runs as root, or as a user without a number"


@pytest.mark.parametrize("rule", [bases, users], ids=lambda rule: rule.__name__)
def test_the_dockerfile_keeps_the_rules(rule):
    """The Dockerfile violates none of the rules."""
    assert [] == list(rule(stages(DOCKERFILE.read_text())))


HEAD = "FROM a:1 AS x\n"


@pytest.mark.parametrize(
    ("rule", "text", "problem"),
    [
        (bases, "ARG A=a\nFROM ${A} AS x", "a has no tag"),
        (bases, "ARG A=a:latest\nFROM ${A} AS x", "a:latest has no tag"),
        (bases, "FROM a:1", "stage 0 has no name"),
        (bases, HEAD + "FROM a:2 AS y", "what was built for one base runs on another"),
        (users, HEAD + 'ENTRYPOINT ["a"]', "x runs as root, or as a user without a number"),
        (
            users,
            HEAD + 'USER 9\nUSER root\nENTRYPOINT ["a"]',
            "x runs as root, or as a user without a number",
        ),
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
