"""The objects for Kubernetes are valid, fit together, and fit the image and the broker."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes.commands import execute
from processes.running import ROOT

from leveret import __version__
from leveret.broker.config.config import Config, Listener, load

NUMBERS = {"amqp": 5672, "management": 15672, "metrics": 15692}


class Manifest:
    def __init__(self, objects: Sequence[dict[str, Any]]) -> None:
        self.objects = objects
        self.by_name = {f"{each['kind']}/{each['metadata']['name']}": each for each in self.objects}
        (self.stateful,) = (each["spec"] for each in objects if each["kind"] == "StatefulSet")
        self.pod = self.stateful["template"]
        (self.container,) = self.pod["spec"]["containers"]
        self.ports = {each["name"]: each["containerPort"] for each in self.container["ports"]}


def manifest_of(name: str) -> Manifest:
    return Manifest(list(yaml.safe_load_all((ROOT / "kubernetes" / name).read_text(encoding="utf-8"))))


def manifests_of_logs() -> dict[str, Manifest]:
    """Return what the command of the page on six logs hands to `kubectl`, by log."""
    page = (ROOT / "docs" / "howto" / "six-logs.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("kubernetes/"))
    command, _, _ = line.partition(" | kubectl ")
    text = execute(["sh", "-ec", command], cwd=ROOT, check=True, timeout=60).stdout
    objects = list(yaml.safe_load_all(text.removeprefix("---")))
    names = dict.fromkeys(each["metadata"]["labels"]["app.kubernetes.io/name"] for each in objects)
    return {
        name: Manifest(
            [each for each in objects if each["metadata"]["labels"]["app.kubernetes.io/name"] == name]
        )
        for name in names
    }


ONE, REPLICATED = manifest_of("leveret.yaml"), manifest_of("replicated.yaml")
LOGS = manifests_of_logs()
ALL = (ONE, REPLICATED, LOGS["orders"], LOGS["front"])
BOTH = pytest.mark.parametrize("manifest", ALL, ids=["one", "replicated", "orders", "front"])
BY_NAME, POD, CONTAINER, PORTS = ONE.by_name, ONE.pod, ONE.container, ONE.ports
MADE_BY_HAND = {"leveret-login", "leveret-postgresql"}
"""Secrets that the comment of the file has commands for."""


@pytest.mark.parametrize(("manifest", "name"), [(each, name) for each in ALL for name in each.by_name])
def test_an_object_is_valid(manifest, name):
    """It has the form of its kind, and no unknown key."""
    validator = pytest.importorskip("kubernetes_validate", reason="has the schemas")

    validator.validate(manifest.by_name[name], validator.latest_version(), strict=True)


@BOTH
def test_objects_name_each_other_rightly(manifest):
    """Services and the set select the pod; the Secret, the configuration and volumes that it names are there."""
    stateful, by_name, spec = manifest.stateful, manifest.by_name, manifest.pod["spec"]
    labels = manifest.pod["metadata"]["labels"]
    volumes = {each["name"] for each in spec["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful.get("volumeClaimTemplates", ())}

    assert labels == stateful["selector"]["matchLabels"]
    assert by_name[f"Service/{stateful['serviceName']}"]["spec"]["clusterIP"] == "None"
    for service in (each for each in manifest.objects if each["kind"] == "Service"):
        assert labels == service["spec"]["selector"]
        assert all(manifest.ports[each["targetPort"]] == each["port"] for each in service["spec"]["ports"])
    secrets = {each["secretRef"]["name"] for each in manifest.container.get("envFrom", ())}
    assert {f"Secret/{name}" for name in secrets} <= by_name.keys()
    configs = [each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each]
    assert {f"ConfigMap/{name}" for name in configs} <= by_name.keys()
    assert volumes == {each["name"] for each in manifest.container["volumeMounts"]}


@BOTH
def test_the_pod_may_do_little(manifest):
    """As the strictest of Kubernetes' pod security standards demands, and beyond: no file of the image can be written."""
    spec = manifest.pod["spec"]
    pod, own = spec["securityContext"], manifest.container["securityContext"]

    assert (True, 999, 999, 999) == tuple(
        pod[key] for key in ("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup")
    )
    assert {"type": "RuntimeDefault"} == pod["seccompProfile"]
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == own
    assert not spec["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert "memory" in manifest.container["resources"]["limits"]


def test_there_is_one_broker_and_it_has_time_to_stop():
    """Its data are on a volume, and a stop may write for as long as the compose file allows."""
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())

    assert 1 == BY_NAME["StatefulSet/leveret"]["spec"]["replicas"]
    assert (
        f"{POD['spec']['terminationGracePeriodSeconds'] // 60}m"
        == compose["services"]["broker"]["stop_grace_period"]
    )
    assert f"leveret:{__version__}" == CONTAINER["image"]


def test_no_password_is_in_the_file():
    """The first start makes one, because the Secret has the name of the user only."""
    assert {"RABBITMQ_DEFAULT_USER": "admin"} == BY_NAME["Secret/leveret-login"]["stringData"]
    assert [{"name": "LEVERET_RANDOM_PASSWORD", "value": "1"}] == CONTAINER["env"]


def test_the_broker_takes_the_configuration(tmp_path):
    """With the image's own, it listens where the ports of the pod are, and writes to the volume only."""
    for name, text in BY_NAME["ConfigMap/leveret-config"]["data"].items():
        (tmp_path / name).write_text(text)
    config = load([ROOT / "docker" / "image.conf", tmp_path])
    mounts = {each["mountPath"] for each in CONTAINER["volumeMounts"] if not each.get("readOnly")}

    assert () == config.warnings
    assert (Listener("", NUMBERS["amqp"]),) == config.listeners
    assert ("0.0.0.0", NUMBERS["management"]) == (config.management.host, config.management.port)
    assert NUMBERS == PORTS
    assert any(config.data_dir.is_relative_to(mount) for mount in mounts)
    assert config.audit.file is not None
    assert config.audit.file.is_relative_to(config.data_dir)


@BOTH
def test_probes_ask_for_paths_that_there_are(manifest):
    """Those of the listener for metrics, which needs no login."""
    served = (ROOT / "broker" / "metrics" / "http.py").read_text()
    probes = [manifest.container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]

    assert {"metrics"} == {probe["port"] for probe in probes}
    assert all(f'add_get("{probe["path"].partition("?")[0]}"' in served for probe in probes)


@BOTH
def test_the_configuration_is_mounted_where_the_image_reads_it(manifest):
    """The image's entry point reads that directory."""
    entrypoint = ROOT / "docker" / "entrypoint.sh"
    mounted = {each["name"]: each["mountPath"] for each in manifest.container["volumeMounts"]}

    assert f"--config {mounted['config']}" in entrypoint.read_text()
    assert 0 == subprocess.run(["sh", "-n", entrypoint], check=False, timeout=60).returncode


def test_replicated_nodes_wait_beside_each_other():
    """All start at once without volumes, are replaced by hand, and can be reached before they lead."""
    pods = REPLICATED.by_name["Service/leveret-pods"]["spec"]
    probes = {
        name: REPLICATED.container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness")
    }

    assert 3 == REPLICATED.stateful["replicas"]
    assert "Parallel" == REPLICATED.stateful["podManagementPolicy"]
    assert {"type": "OnDelete"} == REPLICATED.stateful["updateStrategy"]
    assert "volumeClaimTemplates" not in REPLICATED.stateful
    assert pods["publishNotReadyAddresses"]
    assert "publishNotReadyAddresses" not in REPLICATED.by_name["Service/leveret"]["spec"]
    assert {"startup": "/readyz?role=member", "readiness": "/readyz"} == probes
    assert ONE.container["image"] == REPLICATED.container["image"]
    assert (
        ONE.pod["spec"]["terminationGracePeriodSeconds"]
        == REPLICATED.pod["spec"]["terminationGracePeriodSeconds"]
    )


def config_of(manifest: Manifest, folder: Path, ordinal: int) -> tuple[Config, set[str]]:
    """Return the configuration of a pod, and the Secrets that it names."""
    (name,) = {each["metadata"]["name"] for each in manifest.objects if each["kind"] == "StatefulSet"}
    fields = {"metadata.name": f"{name}-{ordinal}", "spec.nodeName": f"machine{ordinal}"}
    secrets, environ = set(), {}
    for each in manifest.container["env"]:
        value, source = each.get("value", ""), each.get("valueFrom", {})
        if "secretKeyRef" in source:
            secrets.add(source["secretKeyRef"]["name"])
            value = "secret"
        elif "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        environ[each["name"]] = value.replace("$(POD)", fields["metadata.name"])
    (data,) = (each["data"] for each in manifest.objects if each["kind"] == "ConfigMap")
    for file, text in data.items():
        (folder / file).write_text(text)
    return load([ROOT / "docker" / "image.conf", folder], environ=environ), secrets


def test_a_replicated_node_takes_its_configuration(tmp_path):
    """Its name and address are those of its pod, and its passwords come from Secrets that are made by hand."""
    config, secrets = config_of(REPLICATED, tmp_path, 1)

    assert "leveret-1" == config.replication.node_name
    assert "leveret-1.leveret-pods:5672" == config.replication.advertised_address
    assert "public" == config.replication.log
    assert "target_session_attrs=read-write" in config.replication.engine_url
    assert secrets == MADE_BY_HAND
    text = (ROOT / "kubernetes" / "replicated.yaml").read_text(encoding="utf-8")
    assert all(f"create secret generic {name} " in text for name in MADE_BY_HAND)
    assert (Listener("", NUMBERS["amqp"]),) == config.listeners
    assert NUMBERS == REPLICATED.ports


def test_six_logs_have_three_nodes_each(tmp_path):
    """Each log has objects of its name, a virtual host of its name, and the machines' names; brokers in front have none of it."""
    one = config_of(REPLICATED, tmp_path, 1)[0]
    names = [name for manifest in LOGS.values() for name in manifest.by_name]
    front = LOGS.pop("front")

    assert 6 == len(LOGS)
    assert len(set(names)) == len(names) == 7 * len(REPLICATED.objects)
    for log, manifest in LOGS.items():
        config, secrets = config_of(manifest, tmp_path, 1)
        assert (log, "machine1") == (config.replication.log, config.replication.node_name)
        assert f"{log}-1.{log}-pods:5672" == config.replication.advertised_address
        assert (log,) == config.vhosts
        assert one.replication.engine_url == config.replication.engine_url
        assert secrets == MADE_BY_HAND
        (spread,) = manifest.pod["spec"]["topologySpreadConstraints"]
        assert "DoNotSchedule" == spread["whenUnsatisfiable"]
    config, secrets = config_of(front, tmp_path, 1)
    assert one.replication.engine_url == config.placement.directory
    assert not config.replication.engine_url
    assert secrets == MADE_BY_HAND
