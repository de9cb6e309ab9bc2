"""A well-behaved client beside the attack: ``python canary.py PORT BROKER_PID``.

Publishes to its own queue and waits for the delivery, every few milliseconds, until its standard input is closed; then
writes what it saw as JSON. A round trip's *stall* leaves out the time in which the broker or the canary was ready to
run but the machine let it wait (Linux: /proc/PID/schedstat), so that a busy machine is not taken for a slow broker.
"""

import json
import select
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from conformance.codec import encode_header, encode_method, frame  # noqa: E402
from conformance.wire import Client  # noqa: E402

PAUSE_SECONDS = 0.003
USER, PASSWORD, VHOST = "canary", "canary-secret", "canary"


def waited(*processes: str) -> float:
    """Return the seconds that the processes have spent ready to run, but not running; 0 where the system has no figure."""
    try:
        return sum(
            int(Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
            for process in processes
        )
    except (OSError, IndexError, ValueError):
        return 0.0


def main() -> int:
    """Go round until standard input ends."""
    port, pid = int(sys.argv[1]), sys.argv[2]
    client = Client(("127.0.0.1", port), timeout=60.0).login(USER, PASSWORD, VHOST, heartbeat=0)
    client.call(1, "channel.open")
    client.call(1, "queue.declare", queue="canary", exclusive=True)
    client.call(1, "basic.consume", queue="canary", no_ack=True)
    print("ready", flush=True)
    worst = stall = 0.0
    rounds = 0
    problem = ""
    method = frame(1, 1, encode_method("basic.publish", routing_key="canary"))
    try:
        while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            rounds += 1
            body = b"canary %d" % rounds
            before, start = waited(pid, "self"), time.monotonic()
            client.raw(method + frame(2, 1, encode_header(len(body))) + frame(3, 1, body))
            message = client.receive(1, "basic.deliver")
            took = time.monotonic() - start
            worst = max(worst, took)
            if took > stall:
                stall = max(stall, took - max(0.0, waited(pid, "self") - before))
            if message.body != body:
                problem = f"foreign message: {message.body[:40]!r} instead of {body!r}"
                break
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    print(json.dumps({"rounds": rounds, "worst": worst, "stall": stall, "problem": problem}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
