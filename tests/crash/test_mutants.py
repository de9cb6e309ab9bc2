"""The planted bugs (`make campaign NAME=mutants`) are bugs of a broker that works otherwise."""

import contextlib
import signal

import pika
import pytest
from crash.mutants.run import MUTANTS, program
from processes.running import serving


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_works_until_something_goes_wrong(tmp_path, mutant):
    """A mutant starts, confirms, delivers and stops without a traceback: only its bug is caught."""
    with serving(tmp_path, program=program(mutant), is_late=True) as running:
        parameters = pika.ConnectionParameters(*running.address)
        with contextlib.closing(pika.BlockingConnection(parameters)) as client:
            channel = client.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for _ in range(3):
                channel.basic_publish("", "q", b"", pika.BasicProperties(delivery_mode=2))
            assert channel.basic_get("q", auto_ack=True)[0] is not None
        code, out, err = running.stopped_by(signal.SIGTERM)

    assert (0, "") == (code, err)
    assert "Traceback" not in out
