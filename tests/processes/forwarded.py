"""A broker, and in front of it another one that forwards all clients of its virtual hosts.

python forwarded.py PROGRAM ... serve ... starts Python with these words, and a front with the same settings. What is
printed is as if they were one broker, whose port is the front's. It ends by SIGTERM: the broker first.
"""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from processes.running import BROKER, LISTENING, leash  # noqa: E402

READY = "Server startup complete"
NAMED = re.compile(r"default_vhosts\.\w+\.name=(.+)")
OF_FRONT = ("management.enabled=false", "prometheus.enabled=false")


def started(words: Sequence[str]) -> "subprocess.Popen[str]":
    """Start Python with some words, out of reach of signals to the group of this process."""
    return subprocess.Popen(
        [*leash(), sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def named(words: Sequence[str]) -> Iterator[str]:
    """Yield the virtual hosts that a broker with such settings has at its start."""
    yield "/"
    for word in words:
        if (found := NAMED.fullmatch(word)) is not None:
            yield found[1]
        if word.startswith("load_definitions="):
            document = json.loads(Path(word.partition("=")[2]).read_text(encoding="utf-8"))
            yield from (each["name"] for each in document["vhosts"])


def show(process: "subprocess.Popen[str]") -> None:
    """Print what a process prints, up to its end."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)


def main(words: list[str]) -> int:
    """Run both up to SIGTERM; returns the exit code of the first that has failed."""
    broker = started(words)
    signal.signal(signal.SIGTERM, lambda *_: broker.terminate())
    address = ""
    assert broker.stdout is not None
    for line in broker.stdout:
        if (found := LISTENING.search(line)) is not None:
            address = f"{found[1]}:{found[2]}"
        elif READY in line:
            break
        else:
            print(line, end="", flush=True)
    else:
        return broker.wait()
    serve = words[words.index("serve") :]
    folder = serve[serve.index("--data-dir") + 1] + "-front"
    settings = [*OF_FRONT, *(f"vhosts.broker.{name}={address}" for name in named(words))]
    front = started([
        *BROKER, *serve, "--data-dir", folder, *(word for each in settings for word in ("--set", each)),
    ])  # fmt: skip
    threads = [threading.Thread(target=show, args=(each,)) for each in (broker, front)]
    for thread in threads:
        thread.start()
    codes = [broker.wait()]
    front.terminate()
    codes.append(front.wait())
    for thread in threads:
        thread.join()
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
