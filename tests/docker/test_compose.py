"""compose.yaml, Prometheus and Grafana fit together, and to the image: every name leads to what it means."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes.running import ROOT

from leveret import __version__

DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KEYS = {
    "image", "build", "hostname", "environment", "ports", "volumes", "restart", "stop_grace_period", "cap_drop",
    "security_opt", "ulimits", "depends_on", "profiles", "command",
}  # fmt: skip
METRICS_PORT = 15692
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "leveret.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRID = 24


def mounts(service: str) -> dict[str, str]:
    """Place in the container → what is there, of one service."""
    return {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES[service].get("volumes", [])}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_only_known_keys(name):
    """Keys are not mistyped: each is one of those of the compose specification that are used here."""
    assert set() == set(SERVICES[name]) - KEYS


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_from_a_fixed_version(name):
    """Each image has a tag that is a version: ours is the project's."""
    image, _, tag = SERVICES[name]["image"].partition(":")

    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
    assert ("build" in SERVICES[name]) == image.startswith("leveret")
    if image.startswith("leveret"):
        assert __version__ == tag


@pytest.mark.parametrize("name", [name for name in SERVICES if "build" in SERVICES[name]])
def test_what_is_built_is_a_stage_of_the_dockerfile(name):
    """The target, the file and the context of a build exist."""
    build = SERVICES[name]["build"]

    assert ROOT == (DOCKER / build["context"]).resolve()
    assert re.search(
        rf"^FROM \S+ AS {build['target']}$", (ROOT / build["dockerfile"]).read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name):
    """A mounted file exists and cannot be written to; a volume is declared."""
    for volume in SERVICES[name].get("volumes", []):
        source, _place, *mode = volume.split(":")
        if source.startswith("."):
            assert (DOCKER / source).exists()
            assert ["ro"] == mode
        else:
            assert source in COMPOSE["volumes"]


def test_every_volume_is_used():
    """Every declared volume is mounted."""
    assert set(COMPOSE["volumes"]) == {
        source for name in SERVICES for source in mounts(name).values() if not source.startswith(".")
    }


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_depends_on_others_of_the_file(name):
    """A service depends only on services of the file, and not on itself."""
    assert set(SERVICES[name].get("depends_on", [])) <= set(SERVICES) - {name}


@pytest.mark.parametrize("name", SERVICES)
def test_only_this_host_gets_in(name):
    """Ports are published on loopback: the passwords are the well-known ones."""
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in SERVICES[name].get("ports", []))


def test_the_broker_keeps_what_it_must_not_lose():
    """Volumes lie where the image writes: its data, and what it exports, which is where the job reads."""
    (data,) = re.findall(r"^VOLUME (.*)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    exported = SERVICES["broker"]["environment"]["LEVERET_EXPORT_DIR"]

    assert {data, exported} == set(mounts("broker"))
    assert mounts("broker")[exported] == mounts("analyze")[exported]


def test_the_job_reads_what_is_exported_and_writes_where_a_volume_is():
    """The words of the job name the mounted folders; it cannot change what it reads."""
    words = SERVICES["analyze"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))

    assert {"--input", "--output"} == set(options)
    assert set(options.values()) == set(mounts("analyze"))
    assert f"export:{options['--input']}:ro" in SERVICES["analyze"]["volumes"]


def test_prometheus_scrapes_the_broker():
    """Prometheus' file lies where its image reads it, and names the broker's host and port of metrics."""
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    targets = [
        target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]

    assert "./prometheus" == mounts("prometheus")["/etc/prometheus"]
    assert {"global", "rule_files", "scrape_configs"} == set(config)
    assert [] == [name for name in config["rule_files"] if not (DOCKER / "prometheus" / name).exists()]
    assert {f"broker:{METRICS_PORT}"} == set(targets)
    assert f" {METRICS_PORT}\n" in (DOCKER / "Dockerfile").read_text()


def provisioned(kind: str) -> dict[str, Any]:
    """Grafana's one file of this kind."""
    (file,) = (DOCKER / "grafana" / "provisioning" / kind).iterdir()
    config = yaml.safe_load(file.read_text())

    assert 1 == config["apiVersion"]
    (entry,) = config["providers" if kind == "dashboards" else kind]
    return entry


def test_grafana_knows_prometheus():
    """Grafana's data source is the file's Prometheus, as often as it scrapes, and the one that the dashboard begins with."""
    source = provisioned("datasources")
    scraped = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["global"][
        "scrape_interval"
    ]

    assert ("prometheus", "http://prometheus:9090", scraped) == (
        source["type"],
        source["url"],
        source["jsonData"]["timeInterval"],
    )
    assert source["isDefault"]


def test_the_dashboard_can_be_imported_unedited():
    """Whoever imports it chooses the data source: no panel, query or variable names one of its own."""
    first, *others = DASHBOARD["templating"]["list"]
    sources = [
        *(variable["datasource"] for variable in others),
        *(panel["datasource"] for panel in PANELS),
        *(target["datasource"] for panel in PANELS for target in panel["targets"]),
    ]

    assert ("datasource", "datasource", "prometheus") == (first["name"], first["type"], first["query"])
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in sources)


def test_grafana_finds_the_dashboard():
    """The folder of dashboards is mounted where the provider looks, and the first page is ours."""
    folder = provisioned("dashboards")["options"]["path"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert "./grafana/dashboards" == mounts("grafana")[folder]
    assert "./grafana/provisioning" == mounts("grafana")["/etc/grafana/provisioning"]
    assert folder == str(Path(home).parent)
    assert (DOCKER / "grafana" / "dashboards" / Path(home).name).exists()


def test_panels_do_not_overlap():
    """Each panel has its own number and its own place on the grid."""
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(PANELS) == len({panel["id"] for panel in PANELS})
    assert len(cells) == len(set(cells))
    assert all(x < GRID for x, _y in cells)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel):
    """A panel has a title, a sentence, a unit, and queries with ids of their own and balanced brackets."""
    queries = panel["targets"]

    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len(queries) == len({query["refId"] for query in queries})
    for query in queries:
        assert [query["expr"].count(bracket) for bracket in "([{"] == [
            query["expr"].count(bracket) for bracket in ")]}"
        ]
        assert '{instance=~"$instance"}' in query["expr"]


def test_the_variable_of_the_dashboard_is_declared():
    """Variables in queries and legends are declared on the board, or are Grafana's own."""
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS)))

    assert used <= {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
