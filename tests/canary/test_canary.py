"""The search for a planted secret: what it finds, what it changes, and what a broker leaves after an eventful life."""

import base64
import gzip
import http.client
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest
from canary import planting, run
from canary.planting import RULES, TESTS, PlantingError, Rule, chosen, plant, replaced
from canary.search import PIECE, encoded, forms, search
from checks.repository import git
from conformance.wire import Client, ClosedError
from processes.running import Running, free_port, serving

ROOT = Path(__file__).resolve().parents[2]
WORD = chosen()
needs_git = pytest.mark.skipif(
    git("ls-files", "pyproject.toml") is None, reason="only git knows the files to copy"
)


def found(folder: Path) -> set[str]:
    """Return the files in which both halves of the secret are found."""
    finds = list(search(folder, forms(WORD.halves())))
    halves = {half: {find.path for find in finds if half in find.form} for half in WORD.halves()}
    assert halves["first half"] == halves["second half"]
    return halves["first half"]


@pytest.mark.parametrize("form", encoded(str(WORD)))
@pytest.mark.parametrize("before", [0, PIECE - 7])
def test_the_secret_is_found_in_each_encoding(tmp_path, form, before):
    """At its offset, also where it goes over the edge of what is read at once, and behind a hole."""
    octets = encoded(str(WORD))[form]
    assert octets.strip(b"\0") != b""
    with (tmp_path / "a").open("wb") as file:
        file.seek(before)
        file.write(b" " + octets)
    finds = list(search(tmp_path, forms(WORD.halves())))

    assert {"first half", "second half"} == {each.form.partition("(")[2][:-1] for each in finds}
    assert all(before < each.offset < before + len(octets) + 1 for each in finds)
    assert len({each.offset for each in finds}) == len(finds)


def test_the_secret_is_found_wherever_data_are(tmp_path):
    """In a database, in a compressed log, under a name with a dot, in a deep folder; a link and a pipe are left out."""
    with lmdb.open(str(tmp_path / "store"), map_size=1 << 30) as env, env.begin(write=True) as transaction:
        transaction.put(b"key", b"x" * 100_000 + str(WORD).encode())
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(b"login of guest: " + str(WORD).encode()))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(9999))[:5000] + str(WORD).encode())
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / ".hidden").write_text(f"password={WORD}")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / ".hidden")
    os.mkfifo(tmp_path / "pipe")

    assert {"store/data.mdb", "old.log.gz (decompressed)", "cut.gz", "a/b/.hidden"} == found(tmp_path)


def test_nothing_is_found_where_nothing_is(tmp_path):
    """Another secret, its hash and random octets are no finds; a word that is too short is refused."""
    (tmp_path / "a").write_bytes(os.urandom(1 << 20) + str(chosen()).encode())

    assert set() == found(tmp_path)
    with pytest.raises(ValueError, match="shorter than"):
        forms({"half": b"short"})


@needs_git
def test_each_rule_finds_its_secret(tmp_path):
    """The copy has the secret where the rules say, and its files are told as they are written."""
    planted = plant(ROOT, tmp_path / "tree", WORD)
    config = (tmp_path / "tree" / "broker" / "config" / "combined.py").read_bytes()

    assert planted["broker/config/combined.py"] == config
    assert b'"default_pass", "%s"' % str(WORD).encode() in config
    assert (tmp_path / "tree" / "leveret" / "broker").is_symlink()


@needs_git
def test_a_rule_that_finds_nothing_is_an_error(tmp_path, monkeypatch):
    """So that a secret that is written in another way one day is not left out silently."""
    lost = Rule("lost secret", ("tests/*.py",), "not in " + "any file", "<secret>")
    monkeypatch.setattr(planting, "RULES", (lost,))
    with pytest.raises(PlantingError, match=r"lost secret: not in any file is nowhere in tests/\*\.py"):
        plant(ROOT, tmp_path / "tree", WORD)


def test_names_of_users_and_of_methods_are_left_alone():
    """Only the password of a login is replaced."""
    text = '"user_id": "guest", "connection.update-secret-ok", "ann-secret", "guest:guest", login("guest", "wrong")'
    for rule in RULES:
        if set(TESTS[:1]) & set(rule.files):
            text, _ = replaced(text, rule, WORD)

    assert (
        f'"user_id": "guest", "connection.update-secret-ok", "ann-secret{WORD}", "guest:{WORD}", login("guest", "wrong")'
        == text
    )


def test_the_campaign_fails_if_its_control_is_not_found(tmp_path, monkeypatch, capsys):
    """And if a place is found that is not allowed; a find in the copy counts where a file was changed since."""
    monkeypatch.setattr(run, "plant", lambda *_: {"tests/a.py": b"as planted " + str(WORD).encode()})
    monkeypatch.setattr(run, "chosen", lambda: WORD)
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--folder", str(tmp_path)])

    def after(files: dict[str, str]) -> int:
        def tests(folder, *_: object) -> tuple[str, int]:
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
            return "5 passed in 1 s", 0

        monkeypatch.setattr(run, "run_tests", tests)
        return run.main()

    good = {
        f"tests/t0/{run.CONTROL_FILE}": base64.b64encode(f"guest:{WORD}".encode()).decode(),
        "logs/console-1.log": "user 'guest' authenticated",
        "tree/tests/a.py": f"as planted {WORD}",
        "tests/t1/store/data.mdb": f'{{"src-uri":"amqp://u:{WORD}@h"}}',
    }
    assert 2 == after({"logs/console-1.log": "user 'guest' authenticated"})
    assert 0 == after(good)
    assert 1 == after(good | {"tree/tests/a.py": f"changed {WORD}"})
    assert "found: tree/tests/a.py, octet 8, as it is (first half)" in capsys.readouterr().out
    assert 1 == after(good | {"tests/t1/store/data.mdb": f'{{"note":"amqp://u:{WORD}@h"}}'})
    assert 2 == after(good | {"logs/console-1.log": "user 'guest' refused"})


class World:
    """A broker that knows the secret in many ways, with all its logs, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        settings = {
            "default_pass": WORD,
            "default_users.ann.password": f"ann-{WORD}",
            "log.console.level": "debug",
            "log.file": folder / "a.log",
            "log.file.level": "debug",
            "log.audit.file": folder / "audit.log",
            "event_exchange.enabled": "true",
            "export.dir": folder / "export",
            "management.enabled": "true",
            "management.tcp.port": self.port,
            "auth.failure_delay": "0ms",
            "auth.max_failures": "infinity",
            "queue_index_embed_msgs_below": "4096",
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.running = Running(folder, *flags)

    def api(self, method: str, path: str, body: object = None, password: object = WORD) -> int:
        """Send a request as guest; returns its status."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        login = base64.b64encode(f"guest:{password}".encode()).decode()
        link.request(method, f"/api/{path}", json.dumps(body), {"authorization": f"Basic {login}"})
        answer = link.getresponse()
        answer.read()
        link.close()
        return answer.status


def test_a_broker_leaves_no_password_in_any_file(tmp_path):
    """Logins and refusals over AMQP and HTTP, users, a new secret, a shovel: only the shovel's login is kept, for itself."""
    world = World(tmp_path)
    with world.running as running:
        running.wait_for("Server startup complete")
        client = Client(running.address).login(password=str(WORD))
        client.call(0, "connection.update-secret", new_secret=f"new-{WORD}", reason="rotation")
        channel = client.channel()
        channel.queue("q", durable=True)
        for number in range(50):
            channel.put("q", bytes(number * 40), delivery_mode=2)
        for user, password in (("guest", f"not {WORD}"), (f"{WORD}"[:9] + "...", "x"), ("ann", f"{WORD}")):
            stranger = Client(running.address)
            with pytest.raises(ClosedError):
                stranger.login(user, password)
            stranger.close_socket()
        shovel = {
            "src-uri": f"amqp://u:{WORD}@127.0.0.1:1",
            "src-queue": "a",
            "dest-uri": "amqp://",
            "dest-queue": "b",
        }
        wanted = [
            (201, "PUT", "users/bob", {"password": f"bob-{WORD}", "tags": "management"}, WORD),
            (204, "PUT", "users/bob", {"password": f"bob2-{WORD}", "tags": ""}, WORD),
            (400, "PUT", "users/eve", {"password": f"eve-{WORD}", "tags": 5}, WORD),
            (401, "GET", "whoami", None, f"bad-{WORD}"),
            (201, "PUT", "parameters/shovel/%2F/s", {"value": shovel}, WORD),
            (400, "PUT", "parameters/shovel/%2F/t", {"value": shovel | {"src-queue": 5}}, WORD),
            (200, "GET", "definitions", None, WORD),
        ]
        client.close_socket()
        statuses = [world.api(method, path, body, password) for _, method, path, body, password in wanted]
        _, out, err = running.stopped_by(signal.SIGTERM)
        (tmp_path / "console.log").write_text(out + err)

    assert [status for status, *_ in wanted] == statuses
    assert {"a.log", "audit.log", "export", "data", "console.log"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "refused" in (tmp_path / "audit.log").read_text()
    finds = list(search(tmp_path, forms(WORD.halves())))
    shovels = [find for find in finds if run.is_allowed(find._replace(path=f"tests/t0/{find.path}"))]
    assert [] == [str(find) for find in finds if find not in shovels]
    assert {"data/store/data.mdb"} == {find.path for find in shovels}


def test_a_login_that_is_written_would_be_seen(tmp_path):
    """A password in a place that is written, the name of a queue, is found, and not allowed."""
    with serving(tmp_path, "--set", f"default_pass={WORD}") as running:
        client = Client(running.address).login(password=str(WORD))
        client.channel().queue(f"q {WORD}", durable=True)
        client.close_socket()
        running.stopped_by(signal.SIGTERM)

    assert {"data/store/data.mdb"} <= found(tmp_path)
    assert not run.is_allowed(SimpleNamespace(path="tests/t0/data/store/data.mdb", before=b'"name":"q '))
