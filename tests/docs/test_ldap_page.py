"""The directory, the configuration and the program of docs/howto/ldap.md do what the page says."""

import re
import sys

from processes import slapd
from processes.commands import execute
from processes.running import ROOT, serving

from leveret.broker.config.config import load

PAGE = (ROOT / "docs" / "howto" / "ldap.md").read_text(encoding="utf-8")
SECONDS = 60


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_directory_of_the_page_decides(tmp_path):
    """A broker with the page's configuration asks the page's directory, and the page's client prints what it says."""
    (ldif,), (program,) = blocks("ldif"), blocks("python")
    server, expected = blocks("text")
    load_entries, start = blocks("sh")[0].strip().rpartition("\n")[::2]
    slapd.needed()
    (tmp_path / "directory.ldif").write_text(ldif, encoding="utf-8")
    (tmp_path / "slapd.conf").write_text(server, encoding="utf-8")
    slapd.loaded(["sh", "-ec", load_entries], cwd=tmp_path)
    words = start.removesuffix(" &").split()
    with slapd.served(lambda port: [each.replace("3389", str(port)) for each in words], cwd=tmp_path) as port:
        config = tmp_path / "leveret.conf"
        config.write_text(blocks("ini")[0].replace("3389", str(port)), encoding="utf-8")
        with serving(tmp_path, "--config", str(config)) as running:
            done = execute(
                [sys.executable, "-c", program.replace("5672", str(running.address[1]))], timeout=SECONDS
            )

    assert (0, expected) == (done.returncode, done.stdout), done.stderr


def test_the_other_settings_of_the_page_are_valid(tmp_path):
    """The configurations for Active Directory and for TLS are accepted."""
    authority = tmp_path / "ca.pem"
    authority.write_text("", encoding="utf-8")
    base = (
        "auth_backends.1 = ldap\nauth_ldap.servers.9 = localhost\n"
        "auth_ldap.queries.vhost_access = {constant, true}\nauth_ldap.queries.resource_access = {constant, true}\n"
    )
    for number, text in enumerate(blocks("ini")[1:]):
        path = tmp_path / f"{number}.conf"
        path.write_text(
            base + text.replace("/etc/leveret/directory-ca.pem", str(authority)), encoding="utf-8"
        )
        assert [] == list(load(config_paths=[path]).warnings)
