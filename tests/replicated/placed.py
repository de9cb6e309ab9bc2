"""Real processes: a log of several in one database, with a node on each machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from processes.commands import execute
from processes.running import command, environment
from replicated.cluster import NAMES, Nodes

SECONDS = 60.0


class Log(Nodes):
    """A log, with a virtual host of its name."""

    def __init__(
        self,
        home: Path,
        url: str,
        log: str,
        vhost: str = "",
        *,
        machines: Sequence[str] = NAMES,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.url = log, url
        folder = home / log
        folder.mkdir()
        own = {"replication.log": log, "default_vhost": vhost or log, **(settings or {})}
        super().__init__(folder, dict.fromkeys(machines, url), settings=own)

    def start(self, name: str) -> None:
        self._settings["replication.advertised_address"] = f"127.0.0.1:{self.ports[name]}"
        super().start(name)

    def told(self, *words: str) -> str:
        """Run a command at the leader."""
        return told(self.home / self.leader(), *words)


def told(folder: Path, *words: str) -> str:
    """Run a command that succeeds."""
    done = execute([*command("ctl", "--data-dir", str(folder)), *words], env=environment(), timeout=SECONDS)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout
