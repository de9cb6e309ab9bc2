"""The id of the cluster: made at the first start, kept, and imported with definitions."""

import contextlib
import json
import re
import signal
from pathlib import Path
from typing import Any

from processes.running import Running, serving

from leveret.broker.cli.ctl.client import ApiClient

ID = re.compile(r"rabbitmq-cluster-id-[\w-]{22}", re.ASCII)


def parameters(running: Running) -> dict[str, Any]:
    with contextlib.closing(ApiClient(running.data_dir)) as api:
        return {each["name"]: each["value"] for each in api.get("global-parameters")}


def test_the_id_is_made_once(tmp_path: Path):
    """It is a global parameter from the first start on, and the same after a restart; a removed one is replaced."""
    found = []
    for _ in range(3):
        with serving(tmp_path) as running:
            found.append(parameters(running)["internal_cluster_id"])
            with contextlib.closing(ApiClient(running.data_dir)) as api:
                assert api.get("definitions")["global_parameters"] == [
                    {"name": "internal_cluster_id", "value": found[-1]}
                ]
                if len(found) == 2:
                    api.delete("global-parameters", "internal_cluster_id")
            assert 0 == running.stopped_by(signal.SIGTERM)[0]

    assert found[0] == found[1] != found[2]
    assert all(ID.fullmatch(each) for each in found)


def test_an_imported_id_replaces_it(tmp_path: Path):
    """Definitions of another broker have its id: at a start they are imported as they are."""
    file = tmp_path / "definitions.json"
    wanted = {"internal_cluster_id": "rabbitmq-cluster-id-7u9O8O6IxJFPw4QrA_sVGQ", "cluster_name": "theirs"}
    rows = [{"name": name, "value": value} for name, value in wanted.items()]
    file.write_text(json.dumps({"vhosts": [{"name": "/"}], "global_parameters": rows}))
    with serving(tmp_path, "--set", f"load_definitions={file}") as running:
        assert wanted == parameters(running)
        with contextlib.closing(ApiClient(running.data_dir)) as api:
            assert "theirs" == api.get("overview")["cluster_name"]
        assert 0 == running.stopped_by(signal.SIGTERM)[0]
