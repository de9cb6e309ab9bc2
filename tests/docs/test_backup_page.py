"""The commands of the page about backups do what it says."""

import re

import pika
from processes.commands import execute
from processes.running import ROOT, UNWATCHED, Running, channel_to, environment, serving, write_command

PAGE = ROOT / "docs" / "howto" / "back-up-and-restore.md"
SERVE = (*UNWATCHED, "--set", "management.enabled=false")


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def publish(running: Running, body: bytes) -> None:
    """Publish a message that is on disk afterwards."""
    with channel_to(running.address) as channel:
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def taken(running: Running) -> list[bytes]:
    found = []
    with channel_to(running.address) as channel:
        while (body := channel.basic_get("q", auto_ack=True)[2]) is not None:
            found.append(body)
    return found


def test_the_commands_of_the_page(tmp_path):
    """A backup of a running broker is clean, and a restored broker has what it had then."""
    back_up, restore, upgrade = blocks()
    binaries = write_command(tmp_path / "bin")
    (tmp_path / "backups").mkdir()

    def run(block: str) -> str:
        here = block.replace("/var/lib/leveret", str(tmp_path / "data")).replace(
            "/backups", str(tmp_path / "backups")
        )
        environ = environment()
        path = f"{binaries}:{environ['PATH']}"
        done = execute(["sh", "-ec", here], env={**environ, "PATH": path}, cwd=tmp_path)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    with serving(tmp_path, *SERVE) as running:
        publish(running, b"before")
        assert "clean: queues: 1, messages: 1," in run(back_up)
        publish(running, b"after")
        run(upgrade)
        running.process.terminate()
        running.process.wait(60)
    run(restore)
    with serving(tmp_path, *SERVE) as restored:
        assert [b"before"] == taken(restored)
