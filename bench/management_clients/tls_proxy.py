"""Runs a command while a proxy with TLS listens at port 15671, before the API's port 15672.

Neither broker has a certificate in these runs; a proxy is what docs/management.md recommends. The certificates are made
with `openssl`, into the given directory, which is `TLS_CERTS_DIR` of the command.

    python -m bench.management_clients.tls_proxy DIR COMMAND ...
"""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from pathlib import Path

PORT, BEHIND = 15671, 15672
NAMES = ("server", "client")


def make_certificates(folder: Path) -> None:
    """Make an authority, and a certificate with key for the server and a client, all of localhost."""
    folder.mkdir(exist_ok=True)
    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(
        folder,
        "req",
        "-x509",
        *key,
        "-subj",
        "/CN=authority",
        "-keyout",
        "ca_key.pem",
        "-out",
        "ca_certificate.pem",
    )
    for name in NAMES:
        files = ("-keyout", f"{name}_key.pem", "-out", f"{name}_certificate.pem")
        signed = (
            "-CA",
            "ca_certificate.pem",
            "-CAkey",
            "ca_key.pem",
            "-addext",
            "subjectAltName=DNS:localhost",
        )
        leaf = ("-addext", "basicConstraints=critical,CA:FALSE")
        openssl(folder, "req", "-x509", *key, "-subj", "/CN=localhost", *signed, *leaf, *files)


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


async def run(folder: Path, command: list[str]) -> int:
    """Run the command with the proxy, and return its exit code."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca_certificate.pem"))
    context.load_cert_chain(folder / "server_certificate.pem", folder / "server_key.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    async with await asyncio.start_server(forward, "127.0.0.1", PORT, ssl=context):
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "TLS_CERTS_DIR": str(folder)}
        )
        return await process.wait()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on the bytes of a connection in both directions until one side ends."""
    with contextlib.suppress(OSError):
        behind, before = await asyncio.open_connection("127.0.0.1", BEHIND)
        await asyncio.wait(
            [asyncio.create_task(pump(reader, before)), asyncio.create_task(pump(behind, writer))],
        )


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while octets := await reader.read(65536):
            writer.write(octets)
            await writer.drain()


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    make_certificates(folder)
    return asyncio.run(run(folder, sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
