"""Certificates, keys and authorities from named files into contexts of OpenSSL (driver).

OpenSSL opens the names that it is given itself, whatever they lead to. It gets copies of what `read_named` has read.
"""

import ssl
from collections.abc import Callable
from pathlib import Path

from leveret.broker.process.named_files import read_named
from leveret.broker.process.private_files import private_copy


def client_context(authorities: Path | str | None) -> ssl.SSLContext:
    """Return a context that verifies servers: by the authorities in a PEM file, or by those of the system.

    Raises OSError: the file cannot be read or used; `ssl.SSLError` is one.
    """
    if authorities is None:
        return ssl.create_default_context()
    with private_copy(read_named(authorities)) as copy:
        return ssl.create_default_context(cafile=copy)


def load_authorities(context: ssl.SSLContext, path: Path | str) -> None:
    """Load authorities, or lists of revoked certificates. Raises OSError."""
    with private_copy(read_named(path)) as copy:
        context.load_verify_locations(copy)


def load_certificate(
    context: ssl.SSLContext, certificate: Path | str, key: Path | str | None, password: Callable[[], str]
) -> None:
    """Load a certificate with its chain, and its key, which may be in the same file; raises OSError or ValueError.

    `password` is called if the key is encrypted; without it OpenSSL would ask at the terminal.
    """
    with private_copy(read_named(certificate)) as chain:
        if key is None or key == certificate:
            context.load_cert_chain(chain, None, password)
            return
        with private_copy(read_named(key)) as copy:
            context.load_cert_chain(chain, copy, password)


def load_dh_parameters(context: ssl.SSLContext, path: Path | str) -> None:
    """Load Diffie-Hellman parameters. Raises OSError or ValueError."""
    with private_copy(read_named(path)) as copy:
        context.load_dh_params(copy)
