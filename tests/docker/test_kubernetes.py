"""The objects for Kubernetes are valid, fit together, and fit the image and the broker."""

import subprocess
from typing import Any

import pytest
import yaml
from running import ROOT

from leveret import __version__
from leveret.broker.config.config import Listener, load

FILE = ROOT / "kubernetes" / "leveret.yaml"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(FILE.read_text()))
BY_NAME = {f"{each['kind']}/{each['metadata']['name']}": each for each in OBJECTS}
POD = BY_NAME["StatefulSet/leveret"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
PORTS = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
NUMBERS = {"amqp": 5672, "management": 15672, "metrics": 15692}


@pytest.mark.parametrize("name", BY_NAME)
def test_an_object_is_valid(name):
    """It has the form of its kind, and no unknown key."""
    validator = pytest.importorskip("kubernetes_validate", reason="has the schemas")

    validator.validate(BY_NAME[name], validator.latest_version(), strict=True)


def test_objects_name_each_other_rightly():
    """Services and the set select the pod; the Secret, the configuration and volumes that it names are there."""
    stateful = BY_NAME["StatefulSet/leveret"]["spec"]
    labels = POD["metadata"]["labels"]
    volumes = {each["name"] for each in POD["spec"]["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}

    assert labels == stateful["selector"]["matchLabels"]
    assert BY_NAME[f"Service/{stateful['serviceName']}"]["spec"]["clusterIP"] == "None"
    for service in (each for each in OBJECTS if each["kind"] == "Service"):
        assert labels == service["spec"]["selector"]
        assert all(PORTS[each["targetPort"]] == each["port"] for each in service["spec"]["ports"])
    assert {f"Secret/{each['secretRef']['name']}" for each in CONTAINER["envFrom"]} <= BY_NAME.keys()
    configs = [each["configMap"]["name"] for each in POD["spec"]["volumes"] if "configMap" in each]
    assert {f"ConfigMap/{name}" for name in configs} <= BY_NAME.keys()
    assert volumes == {each["name"] for each in CONTAINER["volumeMounts"]}


def test_the_pod_may_do_little():
    """As the strictest of Kubernetes' pod security standards demands, and beyond: no file of the image can be written."""
    pod, own = POD["spec"]["securityContext"], CONTAINER["securityContext"]

    assert (True, 999, 999, 999) == tuple(
        pod[key] for key in ("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup")
    )
    assert {"type": "RuntimeDefault"} == pod["seccompProfile"]
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == own
    assert not POD["spec"]["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD["spec"].keys()
    assert "memory" in CONTAINER["resources"]["limits"]


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


def test_probes_ask_for_paths_that_there_are():
    """Those of the listener for metrics, which needs no login."""
    served = (ROOT / "broker" / "metrics" / "http.py").read_text()
    probes = [CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]

    assert {"metrics"} == {probe["port"] for probe in probes}
    assert all(f'add_get("{probe["path"]}"' in served for probe in probes)


def test_the_configuration_is_mounted_where_the_image_reads_it():
    """The image's entry point reads that directory."""
    entrypoint = ROOT / "docker" / "entrypoint.sh"
    mounted = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}

    assert f"--config {mounted['config']}" in entrypoint.read_text()
    assert 0 == subprocess.run(["sh", "-n", entrypoint], check=False, timeout=60).returncode
