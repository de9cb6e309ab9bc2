"""Certificates of clients, usual ones and bad ones: who gets in is as recorded in `table.txt`, beside a RabbitMQ."""

import pytest
from certified.explained import EXPLAINED
from certified.outcomes import MODES, NO_NAME
from certified.presented import LEAVES, Collection, Presented
from certified.run import ours
from certified.table import read
from samples.certificates import Issued

REFUSED = (
    "none", "has ended", "not yet valid", "server only", "mail only", "unknown critical extension", "RSA 1024",
    "signed with SHA-1", "intermediate missing", "too deep", "intermediate is no CA", "intermediate has ended",
    "intermediate may not sign", "intermediate for other names", "another CA", "another CA of the same name",
    "self-signed", "self-signed as the CA",
)  # fmt: skip


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def server(collection: Collection) -> Issued:
    return collection.ca.server()


@pytest.fixture(scope="module")
def presented(collection: Collection) -> list[Presented]:
    return list(collection.all())


def test_the_table_is_complete(presented: list[Presented]) -> None:
    """It has every certificate, those that must be refused are, and what is explained is in it."""
    table = read()

    assert [each.name for each in presented] == list(table)
    assert len(LEAVES) > 30
    assert [] == [name for name in REFUSED if table[name] != {"TLS 1.2": "no", "TLS 1.3": "no"}]
    assert [] == [key for key in EXPLAINED if key[0] not in table]


@pytest.mark.parametrize("mode", MODES)
def test_who_gets_in_is_as_recorded(
    collection: Collection, server: Issued, presented: list[Presented], mode: str
) -> None:
    """By each part of a certificate that may name the user; of alternative names a certificate without any is one, too."""
    table = read()
    asked = [
        each
        for each in presented
        if mode in {"distinguished name", "common name"}
        or each.name == "usual"
        or table[each.name].get(mode, NO_NAME) != NO_NAME
    ]
    found = ours(collection, server, asked, (mode,))
    if mode == "distinguished name":
        columns = {"TLS 1.2", "TLS 1.3", mode}
    else:
        columns = {mode}
        found = {name: {} if "no TLS" in row.values() else row for name, row in found.items()}
    expected = {
        each.name: {key: value for key, value in table[each.name].items() if key in columns} for each in asked
    }
    assert expected == found
