"""A directory for tests: OpenLDAP's slapd with a scratch configuration, on free ports of this host."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes.running import free_port

from leveret.broker.auth.backends.ldap_queries import query_of
from leveret.broker.auth.backends.settings import Bind, LDAPQueries, LDAPSettings

SECONDS = 60.0
BASE = "dc=example,dc=com"
PEOPLE = f"ou=people,{BASE}"
GROUPS = f"ou=groups,{BASE}"
BROKER = Bind("entry", f"cn=broker,{BASE}", "broker-secret")
MODULES = Path("/usr/lib/ldap")
SCHEMAS = Path("/etc/ldap/schema")

CONFIGURATION = """
include {schemas}/core.schema
include {schemas}/cosine.schema
include {schemas}/inetorgperson.schema
modulepath {modules}
moduleload back_mdb
pidfile {folder}/slapd.pid
argsfile {folder}/slapd.args
{tls}
allow bind_v2
database mdb
suffix "{base}"
rootdn "cn=root,{base}"
rootpw root-secret
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by * read
"""


def entry(dn: str, *classes: str, **attributes: Any) -> str:
    """Return an entry as LDIF."""
    lines = [f"dn: {dn}", *(f"objectClass: {each}" for each in classes)]
    for name, values in attributes.items():
        lines += [f"{name}: {value}" for value in ([values] if isinstance(values, str) else values)]
    return "\n".join(lines) + "\n"


def person(name: str, **more: Any) -> str:
    """Return a user whose password is its name and `-secret`."""
    attributes = {
        "cn": name,
        "sn": name,
        "userPassword": f"{name}-secret",
        "mail": f"{name}@example.com",
    } | more
    return entry(f"uid={name},{PEOPLE}", "inetOrgPerson", uid=name, **attributes)


def group(name: str, *members: str) -> str:
    """Return a group; members with a `=` are DNs, others are users."""
    dns = [each if "=" in each else f"uid={each},{PEOPLE}" for each in members]
    return entry(f"cn={name},{GROUPS}", "groupOfNames", cn=name, member=dns)


def organization() -> list[str]:
    """Return the entries above all others, and that of the broker."""
    return [
        entry(BASE, "domain", dc="example"),
        entry(PEOPLE, "organizationalUnit", ou="people"),
        entry(GROUPS, "organizationalUnit", ou="groups"),
        entry(BROKER.dn, "person", cn="broker", sn="broker", userPassword=BROKER.password),
    ]


class Slapd:
    """A running slapd.

    Attributes:
        port: port of `ldap`, also for StartTLS.
        tls_port: port of `ldaps`.

    """

    def __init__(self, folder: Path, port: int, tls_port: int) -> None:
        self.folder = folder
        self.port = port
        self.tls_port = tls_port

    def settings(self, *, queries: dict[str, str] | None = None, **more: Any) -> LDAPSettings:
        """Return the settings of a backend that asks this directory."""
        found = {kind: query_of(kind, text) for kind, text in (queries or {}).items()}
        base = {
            "servers": ("127.0.0.1",),
            "port": self.port,
            "timeout": SECONDS,
            "user_dn_pattern": f"uid=${{username}},{PEOPLE}",
            "other_bind": BROKER,
            "queries": LDAPQueries(**({"vhost_access": _ALL, "resource_access": _ALL} | found)),
        }
        return LDAPSettings(**(base | more))


_ALL = query_of("vhost_access", "{constant, true}")


def program() -> str | None:
    """Return the path of slapd, which the PATH of ordinary users does not lead to."""
    return shutil.which("slapd") or shutil.which("slapd", path="/usr/sbin:/usr/local/sbin:/usr/local/libexec")


def needed() -> None:
    """Leave a test out where there is no slapd."""
    if program() is None or not MODULES.is_dir() or not SCHEMAS.is_dir():
        pytest.skip("needs OpenLDAP's slapd (Debian's package slapd)")


@contextlib.contextmanager
def running(folder: Path, entries: list[str], tls: dict[str, Path] | None = None) -> Iterator[Slapd]:
    """Run a slapd with these entries after those of `organization`; `tls` has CA, certificate and key."""
    needed()
    (folder / "data").mkdir()
    lines = []
    if tls is not None:
        names = {
            "TLSCACertificateFile": "ca",
            "TLSCertificateFile": "certificate",
            "TLSCertificateKeyFile": "key",
        }
        lines = [f"{name} {tls[part]}" for name, part in names.items()]
    configuration = folder / "slapd.conf"
    configuration.write_text(
        CONFIGURATION.format(schemas=SCHEMAS, modules=MODULES, folder=folder, tls="\n".join(lines), base=BASE)
    )
    text = "\n".join([*organization(), *entries])
    loaded([program(), "-T", "add", "-f", configuration], input=text.encode())
    tls_ports = []

    def command(port: int) -> list[Any]:
        tls_ports.append(free_port())
        urls = [f"ldap://127.0.0.1:{port}", *([f"ldaps://127.0.0.1:{tls_ports[-1]}"] if tls else [])]
        return [program(), "-f", configuration, "-h", " ".join(urls), "-d", "0"]

    with served(command) as port:
        yield Slapd(folder, port, tls_ports[-1])


def loaded(command: list[Any], **more: Any) -> None:
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS, **more)
    if b"denied" in done.stderr:  # by a profile of the system, which allows slapd its own folders only
        pytest.skip("slapd may not read files of tests here")
    assert 0 == done.returncode, done.stderr.decode()


@contextlib.contextmanager
def served(command: Callable[[int], list[Any]], **more: Any) -> Iterator[int]:
    """Run a command that serves a directory on a free port, which is given."""
    for _ in range(5):  # another program may take a free port before slapd does
        port = free_port()
        process = subprocess.Popen(
            command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more
        )
        try:
            if _answers(process, port):
                yield port
                return
        finally:
            process.terminate()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    raise AssertionError("slapd does not start")


def _answers(process: "subprocess.Popen[bytes]", port: int) -> bool:
    end = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process.poll() is None
        time.sleep(0.05)
    return False
