"""A broker in the process of an application loads few packages, so that the application's own versions meet none of ours."""

import json
import os
import sys

import pytest
from processes.commands import execute

PROGRAM = """
import json, sys
before = set(sys.modules)
import leveret
with leveret.Broker(**json.loads(sys.argv[1])) as broker:
    broker.declare("orders")
    broker.publish("", "orders", "one")
    assert [b"one"] == [message.body for message in broker.queue("orders").messages]
installed = {name.partition(".")[0] for name, module in sys.modules.items()
             if "site-packages" in (getattr(module, "__file__", None) or "") and name not in before}
print(json.dumps(sorted(installed)))
"""
ALWAYS = {"msgspec", "pamqp", "uvloop", "zlib_ng"}
OF_OTHERS = {"leveret", "typing_extensions"}
"""Found in the folder of packages where this is installed; msgspec loads the second if it is there."""


FIRST = """
import time
began = time.process_time()
import leveret
leveret.Broker().start()
print(time.process_time() - began)
"""


def test_a_first_start_takes_a_moment():
    """With bytecode the first broker of a process costs at most half a second of processor time, on a busy machine, too."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds = [
        float(
            execute([sys.executable, "-c", FIRST], check=True, env=environment).stdout
        )
        for _ in range(3)
    ]  # fmt: skip

    assert min(seconds) <= 0.5


@pytest.mark.parametrize(("with_data", "more"), [(False, set()), (True, {"lmdb"})])
def test_an_embedded_broker_loads_what_it_uses(tmp_path, with_data, more):
    """With messages in memory it loads four packages, and LMDB where it has a data directory."""
    options = {"data_dir": str(tmp_path / "data")} if with_data else {}
    done = execute([sys.executable, "-c", PROGRAM, json.dumps(options)], check=True)

    assert ALWAYS | more == set(json.loads(done.stdout)) - OF_OTHERS
