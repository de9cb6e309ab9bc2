"""PostgreSQL for tests of replicated brokers: a primary with two synchronous standbys, which can be made to fail."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from processes.commands import execute
from processes.postgresql_server import SECONDS, as_whom, needed_programs
from processes.running import children
from processes.short_paths import servers_folder

NAMES = ("s0", "s1", "s2")
POLL = 0.05
_CONFIGURATION = """
listen_addresses = ''
shared_buffers = 16MB
hot_standby = on
wal_level = replica
synchronous_standby_names = 'ANY 1 (s0, s1, s2)'
wal_receiver_status_interval = 1
wal_retrieve_retry_interval = 200
wal_keep_size = 320
max_wal_size = 128MB
"""
AT_REST = ("RecoveryRetrieveRetryInterval", "RecoveryWalStream")
"""Events that a standby's replay waits for when it has replayed all that the standby has."""


class NotComparableError(Exception):
    """A standby that may have what no other has cannot be asked: none may be promoted."""


class ProgramError(Exception):
    """A program of PostgreSQL has failed; the text says what it printed."""


class Database:
    """A primary and two standbys, of which one has to have what is committed; each is reached by a socket.

    Args:
        home: a short path, in which they keep everything.
        disk_octets: size of a file system of its own for each of them, which needs root; 0 for none.
        configuration: more lines for `postgresql.conf`.

    """

    def __init__(self, home: Path, *, disk_octets: int = 0, configuration: str = "") -> None:
        self.home = home
        self._programs = needed_programs()
        self._servers: dict[str, Any] = {}
        self._mounted: list[Path] = []
        self.primary = "s0"
        self.log = "public"
        """The schema of the log that `lease` shows."""
        self.former: set[str] = set()
        """Servers that were primaries of an earlier timeline, and cannot follow as they are."""
        self._stopped: list[int] = []
        """Processes that a signal has stopped."""
        self._own(home)
        try:
            for name in NAMES:
                self._make_folder(name, disk_octets)
            self._make(configuration)
        except BaseException:
            self.stop()
            raise

    def _make_folder(self, name: str, disk_octets: int) -> None:
        folder = self.home / name
        folder.mkdir()
        if disk_octets:
            words = ["mount", "-t", "tmpfs", "-o", f"size={disk_octets}", "none", str(folder)]
            execute(words, check=True, timeout=SECONDS)
            self._mounted.append(folder)
        self._own(folder)

    def _make(self, configuration: str) -> None:
        self._run(
            "initdb", "-D", self.data("s0"), "-U", "leveret", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"
        )
        with (self.data("s0") / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION + configuration)
        self.start("s0")
        for name in NAMES[1:]:
            self.rebuild(name)
        self.sql("s0", "create database leveret")
        self.wait_for_standbys()

    @staticmethod
    def _own(path: Path) -> None:
        if not os.geteuid():
            shutil.chown(path, "postgres", "postgres")

    def _run(self, program: str, *words: object) -> None:
        done = execute([self._programs / program, *words], cwd=self.home, timeout=SECONDS, **as_whom())
        if done.returncode:
            raise ProgramError(f"{program} ended with {done.returncode}: {done.stderr.strip()}")

    def data(self, name: str) -> Path:
        return self.home / name / "data"

    def socket(self, name: str) -> Path:
        path = self.home / f"at{name}"
        if not path.exists():
            path.mkdir()
            self._own(path)
        return path

    def _origin(self, name: str) -> str:
        return f"host={self.socket(self.primary)} user=leveret application_name={name}"

    # -- servers ----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a server, as what its files say it is; returns when it answers.

        Raises:
            AssertionError: it has ended.
            TimeoutError: it does not answer.

        """
        with (self.home / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data(name), "-k", self.socket(name)],
                cwd=self.home,
                stdout=subprocess.DEVNULL,
                stderr=log,
                **as_whom(),
            )
        wait = [self._programs / "pg_isready", "-h", self.socket(name), "-t", "1"]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if not subprocess.run(wait, capture_output=True, timeout=SECONDS, check=False).returncode:
                return
            assert self._servers[name].poll() is None, f"the server {name} has ended"
            time.sleep(POLL)
        raise TimeoutError(name)

    def is_running(self, name: str) -> bool:
        return name in self._servers and self._servers[name].poll() is None

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers.values()]

    def kill(self, name: str) -> None:
        """End a server and all its processes as by kill -9, or by the loss of its machine."""
        server = self._servers.pop(name)
        with contextlib.suppress(OSError):
            os.kill(server.pid, signal.SIGSTOP)  # so that it starts nothing more
        doomed = [server.pid, *children(server.pid)]
        for pid in doomed:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        server.wait(SECONDS)
        for pid in doomed[1:]:
            _wait_for_end(pid)

    def restart(self, name: str) -> None:
        """Stop a server in good order, without waiting for clients, and start it again."""
        server = self._servers.pop(name)
        server.send_signal(signal.SIGINT)
        server.wait(SECONDS)
        self.start(name)

    def sql(self, name: str, *statements: str, database: str = "postgres") -> Any:
        """Run statements at a server; returns the rows of the last one."""
        url = f"host={self.socket(name)} user=leveret dbname={database}"
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def lease(self, name: str) -> Any:
        """Return epoch, counter and index of the last entry as a server shows them."""
        ((epoch, counter, last),) = self.sql(
            name, f"select epoch, counter, last from {self.log}.leveret_lease", database="leveret"
        )
        return epoch, counter, last

    def has_log(self, log: str) -> bool:
        """Return whether the primary shows a log of a name."""
        found = self.sql(
            self.primary, f"select 1 from pg_namespace where nspname = '{log}'", database="leveret"
        )
        return bool(found)

    @property
    def url(self) -> str:
        """The URL for brokers."""
        hosts = ",".join(str(self.socket(name)) for name in NAMES)
        return f"postgresql:///leveret?host={hosts}&user=leveret&target_session_attrs=read-write"

    # -- standbys ---------------------------------------------------------------------------------------------------

    @property
    def standbys(self) -> list[str]:
        """The servers that may have what the primary has committed."""
        return [name for name in NAMES if name != self.primary and name not in self.former]

    def rebuild(self, name: str) -> None:
        """Make a server a standby of the primary, from a copy of that.

        Raises:
            ProgramError: the copy fails again and again, as it may while the primary has just been promoted.

        """
        if name in self._servers:
            self.kill(name)
        words = ("-D", self.data(name), "-d", self._origin(name), "-R", "-c", "fast")
        deadline = time.monotonic() + SECONDS
        while True:
            shutil.rmtree(self.data(name), ignore_errors=True)
            try:
                self._run("pg_basebackup", *words)
                break
            except ProgramError as error:
                print(f"again: {error}", flush=True)
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL)
        self.former.discard(name)
        self.start(name)

    def wait_for_standbys(self, count: int = len(NAMES) - 1) -> None:
        """Wait until so many standbys follow the primary."""
        counted = "select count(*) from pg_stat_replication where state = 'streaming'"
        deadline = time.monotonic() + SECONDS
        while self._counted(counted) != count:
            assert time.monotonic() < deadline, "the standbys do not follow"
            time.sleep(POLL)

    def _counted(self, query: str) -> int:
        try:
            ((count,),) = self.sql(self.primary, query)
        except psycopg.OperationalError:  # it recovers
            return -1
        return int(count)

    def follow(self, name: str, origin: str | None = None) -> None:
        """Have a standby follow the primary, or what a connection string says.

        A standby that is down does so once it is started.
        """
        line = f"primary_conninfo = '{self._origin(name) if origin is None else origin}'"
        if self.is_running(name):
            self.sql(name, f"alter system set {line}", "select pg_reload_conf()")
        else:
            with (self.data(name) / "postgresql.auto.conf").open("a") as file:
                file.write(f"{line}\n")

    def lag(self, name: str) -> None:
        """Stop the process of a standby that receives, until `resume`."""
        found = self.sql(name, "select pid from pg_stat_activity where backend_type = 'walreceiver'")
        for (pid,) in found:
            os.kill(pid, signal.SIGSTOP)
            self._stopped.append(pid)

    def resume(self) -> None:
        """Let all standbys receive again."""
        for pid in self._stopped:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    # -- the loss of the primary ------------------------------------------------------------------------------------

    def position(self, name: str) -> int:
        """Return the place up to which a standby has the log of the server on its disk.

        What was received counts from the start of the receiver only, and after a restart may begin below what is there;
        what is replayed is exact once nothing is left to replay.
        """
        event = "select wait_event from pg_stat_activity where backend_type = 'startup'"
        deadline = time.monotonic() + SECONDS
        while (found := self.sql(name, event)) and found[0][0] not in AT_REST:
            assert time.monotonic() < deadline, f"{name} does not come to rest: {found}"
            time.sleep(POLL)
        places = "greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())"
        ((place,),) = self.sql(name, f"select ({places} - '0/0')::bigint")
        return int(place)

    def promote(self, wanted: str | None = None) -> str:
        """Promote the standby that has most, or another one; the others follow it from then on.

        Raises:
            NotComparableError: a standby cannot be asked. Nothing is promoted.

        """
        assert not self.is_running(self.primary), "there would be two"
        standbys = self.standbys
        chosen = wanted
        if chosen is None:
            if silent := [name for name in standbys if not self.is_running(name)]:
                raise NotComparableError(", ".join(silent))
            chosen = max(standbys, key=self.position)
        self.former.add(self.primary)
        self.primary = chosen
        assert self.sql(chosen, "select pg_promote(true, 60)") == [(True,)]
        for name in standbys:
            if name != chosen:
                self.follow(name)
        return chosen

    def lose_primary(self) -> None:
        """Kill the primary, promote the standby that has more, and have the other one follow it."""
        self.kill(self.primary)
        self.promote()

    def heal(self) -> None:
        """Have a primary with two standbys again, whatever was done before."""
        self.resume()
        for name in NAMES:
            self.relieve(name)
        if not self.is_running(self.primary):
            self.start(self.primary)
        for name in NAMES:
            if name in self.former:
                self.rebuild(name)
            elif not self.is_running(name):
                self.start(name)
        for name in self.standbys:
            self.follow(name)
        self.wait_for_standbys()

    # -- disks ------------------------------------------------------------------------------------------------------

    @property
    def has_disks(self) -> bool:
        """True if each server has a file system of its own."""
        return bool(self._mounted)

    def _ballast(self, name: str) -> Path:
        return self.home / name / "ballast"

    def fill(self, name: str) -> None:
        """Leave no room on the disk of a server, until `relieve`."""
        with contextlib.suppress(OSError), self._ballast(name).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError), self._ballast(name).open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def relieve(self, name: str) -> None:
        self._ballast(name).unlink(missing_ok=True)

    def stop(self) -> None:
        self.resume()
        for name in list(self._servers):
            with contextlib.suppress(KeyError):  # a thread may end it at the same time
                self.kill(name)
        for folder in self._mounted:
            execute(["umount", "-l", str(folder)], timeout=SECONDS)
        self._mounted.clear()


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return  # nobody waits for it
        time.sleep(POLL)


def may_mount() -> bool:
    """Return whether file systems can be mounted here."""
    if os.geteuid():
        return False
    with mounted_for_a_moment() as is_mounted:
        return is_mounted


@contextlib.contextmanager
def database_in_folder(prefix: str, **options: Any) -> Iterator[tuple[Path, Database]]:
    """Run a database in a new folder, which is removed with what else is in it; `options` as of `Database`."""
    home = servers_folder(prefix)
    try:
        (home / "pg").mkdir()
        database = Database(home / "pg", **options)
        try:
            yield home, database
        finally:
            database.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def mounted_for_a_moment() -> Iterator[bool]:
    """Try to mount a file system."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "-o", "size=65536", "none", folder]
        done = subprocess.run(words, check=False, capture_output=True, timeout=SECONDS)
        try:
            yield done.returncode == 0
        finally:
            if done.returncode == 0:
                execute(["umount", folder], check=True, timeout=SECONDS)
