"""The page about TLS: from its first command to its last it does what it says."""

import re
import sys
from pathlib import Path

from checks.how_to import BLOCK, SECONDS
from processes.commands import execute
from processes.running import ROOT, Running, environment, free_port, write_command

PAGE = ROOT / "docs" / "howto" / "tls.md"
BLOCKS = re.compile(BLOCK.pattern.replace("python|", "python|ini|"), BLOCK.flags)


class Follower:
    """Somebody who follows the page in an empty directory, with ports that are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        self.compared = 0
        self.ports = {"15671": str(free_port()), "5671": str(free_port())}
        binaries = write_command(folder / "bin")
        self.environ = {**environment(), "LEVERET_DATA_DIR": str(folder / "data")}
        self.environ["PATH"] = f"{binaries}:{self.environ['PATH']}"
        self.running: Running | None = None

    def start(self) -> None:
        """Start the broker, again if it runs."""
        if self.running is not None:
            self.running.__exit__(None)
        words = ("--config", "tls.conf", "--set", "management.enabled=true")
        self.running = Running(self.folder, *words)
        self.running.wait_for("Server startup complete")

    def follow(self, language: str, text: str) -> None:
        """Do what a block says."""
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        if language == "ini":
            with (self.folder / "tls.conf").open("a", encoding="utf-8") as file:
                file.write(text)
            if self.running is not None:
                self.start()
        elif "leveret serve" in text:
            self.start()
        elif language == "text":
            assert text == self.printed
            self.compared += 1
        else:
            words = [sys.executable, "-c", text] if language == "python" else ["sh", "-ec", text]
            done = execute(words, env=self.environ, timeout=SECONDS, cwd=self.folder)
            assert 0 == done.returncode, (text, done.stderr)
            self.printed = done.stdout


def test_the_page_leads_to_a_broker_with_mutual_tls(tmp_path):
    """Its commands, configurations and programs work one after the other, and print what the page says."""
    follower = Follower(tmp_path)
    try:
        for language, text in BLOCKS.findall(PAGE.read_text(encoding="utf-8")):
            follower.follow(language, text)
        assert "CN=localhost" in follower.printed
        assert 4 == follower.compared
    finally:
        if follower.running is not None:
            follower.running.__exit__(None)
