"""TLS contexts of clients: made in threads, shared by equal parameters, from files that may be anything."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from samples.certificates import Authority

from leveret.broker.client import sockets as module
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.options import TLS
from leveret.broker.client.sockets import MOST, Contexts


def pem(folder: Path, ca: Authority, name: str = "ca.pem") -> str:
    """Return the name of a file with the CA's certificate."""
    path = folder / name
    path.write_bytes(ca.server("trusted").certfile.read_bytes())
    return str(path)


async def test_equal_parameters_share_a_context(tmp_path, ca, monkeypatch):
    """Hundreds of connections at a time make one, in a thread; another one is made when the file has changed."""
    made: list[str] = []
    make = module._context

    def noting(tls: TLS) -> object:
        made.append(threading.current_thread().name)
        return make(tls)

    monkeypatch.setattr(module, "_context", noting)
    contexts, file = Contexts(), pem(tmp_path, ca)
    found = await asyncio.gather(*(contexts.get(TLS(cacertfile=file)) for _ in range(300)))
    found.append(await contexts.get(TLS(cacertfile=file)))
    assert (1, ["leveret-files"]) == (len(set(found)), made)
    os.utime(file, ns=(1, 1))

    assert found[0] is not await contexts.get(TLS(cacertfile=file))
    assert 2 == len(made)


async def test_as_many_are_kept_as_are_used(tmp_path, ca):
    """Hundreds of different ones do not fill the memory."""
    contexts, file = Contexts(), pem(tmp_path, ca)
    for number in range(MOST + 5):
        await contexts.get(TLS(cacertfile=file, password=str(number)))

    assert MOST == len(contexts._made)


async def test_only_the_authorities_that_are_named_are_trusted(tmp_path, ca):
    """Those of the system only if none is named."""
    context = await Contexts().get(TLS(cacertfile=pem(tmp_path, ca)))

    assert 1 == context.cert_store_stats()["x509"]


@pytest.mark.parametrize("field", ["cacertfile", "certfile", "keyfile"])
@pytest.mark.parametrize("name", ["fifo", "/dev/ptmx", "/dev/zero", "missing", "a\0b"])
async def test_a_name_may_lead_to_anything(tmp_path, field, name):
    """A FIFO, a device, nothing: each is an error at once, which names the file."""
    os.mkfifo(tmp_path / "fifo")
    file = str(tmp_path / name)
    async with asyncio.timeout(5):
        with pytest.raises(UnreachableError, match="cannot use"):
            await Contexts().get(TLS(**{field: file}))


async def test_a_file_system_that_does_not_answer_keeps_nobody(monkeypatch):
    """Each waits until its deadline, one thread is started, and the loop goes on meanwhile."""
    begun: list[None] = []
    going_on = threading.Event()

    def hang(*_: object) -> None:
        begun.append(None)
        going_on.wait(10)

    monkeypatch.setattr(module, "_current", hang)
    monkeypatch.setattr(module, "SECONDS", 0.1)
    contexts = Contexts()
    for _ in range(3):
        with pytest.raises(UnreachableError, match=r"cannot read x\.pem for TLS in"):
            async with asyncio.timeout(30):
                await contexts.get(TLS(cacertfile="x.pem"))
    going_on.set()

    assert [None] == begun


async def test_files_are_in_the_directory_that_is_allowed(tmp_path, ca):
    """A file elsewhere, `..` and a link that leads out of it are refused; without a directory every file is."""
    (tmp_path / "in").mkdir()
    inside, outside = pem(tmp_path / "in", ca), pem(tmp_path, ca)
    (tmp_path / "in" / "link").symlink_to(outside)
    directory = str(tmp_path / "in")
    contexts = Contexts()

    await contexts.get(TLS(cacertfile=inside, directory=directory))
    for file in (outside, f"{directory}/../ca.pem", f"{directory}/link"):
        with pytest.raises(UnreachableError, match="not in a directory that is allowed"):
            await contexts.get(TLS(cacertfile=file, directory=directory))
    with pytest.raises(UnreachableError, match="not in a directory that is allowed"):
        await contexts.get(TLS(cacertfile=inside, directory=""))
    await contexts.get(TLS(directory=""))
