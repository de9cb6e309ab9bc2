"""The releases of RabbitMQ that ours is compared with, where each is to be had, and what is recorded of them."""

import functools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "services" / "rabbitmq_root.sh"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""RabbitMQ's script on Debian, past the wrapper that changes users."""
OUTCOMES = Path(__file__).with_name("outcomes.txt")
HEADING = "# What RabbitMQ makes of each case: run.py --write. `=`: as is written in the case, `-`: it is not asked.\n"


@dataclass(frozen=True, slots=True)
class Peer:
    """A release of RabbitMQ.

    Attributes:
        name: of the release; `PEER=` of `make conformance`.
        version: the one that is recorded.
        profile: `compatibility.profile` of ours when it is compared with this one.
        root: a folder with this RabbitMQ (`make peer-4.3`); None for the one of this machine.
        plugins: those of its own that ours has built in.

    """

    name: str
    version: str
    profile: str
    root: Path | None = None
    plugins: tuple[str, ...] = ()

    @property
    def octets(self) -> Path:
        """The record of its answers, octet for octet."""
        return Path(__file__).with_name(f"octets-{self.name}.txt")

    @property
    def missing(self) -> str:
        """The reason why it cannot be started here; empty if it can."""
        if self.root is None:
            return "" if self.server else "needs rabbitmq-server"
        if os.geteuid() != 0:
            return f"RabbitMQ {self.name} runs in a folder of its own, which needs root"
        if not self.root.joinpath(*SERVER.parts[1:]).is_symlink():
            return f"no RabbitMQ {self.name} in {self.root} (make peer-{self.name})"
        return ""

    @property
    def server(self) -> str | None:
        """Its script, seen from inside of its folder; None if there is none."""
        return str(SERVER) if self.root or SERVER.exists() else shutil.which("rabbitmq-server")

    def command(self, program: str, *words: str) -> list[str]:
        """Return the words that run a script of its folder of scripts, by name, with arguments."""
        return self.inside(str(Path(self.server or "").with_name(program)), *words)

    def inside(self, *words: str) -> list[str]:
        """Return the words that run a program where this RabbitMQ is."""
        return [str(SCRIPT), "run", str(self.root), *words] if self.root else list(words)


OF_MACHINE = Peer("3.10", "3.10.8", "3.13")
PEERS = {
    peer.name: peer
    for peer in (
        OF_MACHINE,
        Peer(
            "4.3",
            "4.3.6",
            "4.3",
            Path(os.environ.get("PEER_ROOT") or ROOT / "build" / "rabbitmq-4.3"),
            tuple(f"rabbitmq_{each}_exchange" for each in ("consistent_hash", "random", "recent_history")),
        ),
    )
}


@functools.cache
def recorded() -> dict[str, dict[str, str]]:
    """Return the recorded outcomes: by release, the text of each case's."""
    if not OUTCOMES.exists():
        return {name: {} for name in PEERS}
    rows = [line.split(" | ") for line in OUTCOMES.read_text(encoding="utf-8").splitlines()[1:]]
    return {name: {row[0]: row[at] for row in rows if row[at] != "-"} for at, name in enumerate(PEERS, 1)}


def write(outcomes: dict[str, dict[str, str]], order: list[str]) -> None:
    """Replace the record by these outcomes, the cases in this order.

    Raises:
        ValueError: an outcome cannot be told from two.

    """
    lines = []
    for case in order:
        row = [case, *(outcomes[name].get(case, "-") for name in PEERS)]
        if any(" | " in cell or "\n" in cell for cell in row):
            message = f"{case}: {row}"
            raise ValueError(message)
        lines.append(" | ".join(row) + "\n")
    OUTCOMES.write_text(HEADING + "".join(lines), encoding="utf-8")
