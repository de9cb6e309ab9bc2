"""The releases of RabbitMQ that ours is compared with: where there is none, the reason is told; records are kept whole."""

import os
import sys
from pathlib import Path

import pytest
from conformance import peers
from conformance.peers import PEERS, ROOT, Peer
from processes.commands import execute


def test_a_release_that_cannot_be_had_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """`run.py --if-there` succeeds without a folder of RabbitMQ 4.3, says why, and without the option fails."""
    words = [sys.executable, "tests/conformance/run.py", "--peer", "4.3", "39a"]
    environment = {**os.environ, "PEER_ROOT": str(tmp_path)}
    done = [execute(each, cwd=ROOT, env=environment, timeout=50) for each in ([*words, "--if-there"], words)]

    reason = "make peer-4.3" if os.geteuid() == 0 else "needs root"
    assert [0, 2] == [each.returncode for each in done]
    assert done[0].stdout.startswith("RabbitMQ 4.3 is left out: ")
    assert reason in done[0].stdout
    assert reason in done[1].stderr


def test_a_program_of_a_folder_runs_inside_of_it(tmp_path: Path) -> None:
    """The words begin with the script that enters the folder; those of this machine's RabbitMQ are its own."""
    inside = Peer("4.3", "4.3.6", "4.3", tmp_path)

    assert [str(peers.SCRIPT), "run", str(tmp_path), "epmd", "-kill"] == inside.inside("epmd", "-kill")
    assert ["epmd", "-kill"] == PEERS["3.10"].inside("epmd", "-kill")
    assert str(peers.SERVER.with_name("rabbitmqctl")) == inside.command("rabbitmqctl", "status")[3]


def test_the_record_is_written_as_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A record that is written again is the same file; an outcome that would be two is refused."""
    before = peers.OUTCOMES.read_text(encoding="utf-8")
    record = {name: dict(found) for name, found in peers.recorded().items()}
    order = [line.partition(" | ")[0] for line in before.splitlines()[1:]]
    monkeypatch.setattr(peers, "OUTCOMES", tmp_path / "outcomes.txt")
    peers.write(record, order)

    assert before == peers.OUTCOMES.read_text(encoding="utf-8")
    record["4.3"]["39a"] = "ok 'a | b'"
    with pytest.raises(ValueError, match="39a"):
        peers.write(record, order)
