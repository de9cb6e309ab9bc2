"""TLS contexts of a client's connections (driver)."""

import ssl

from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.options import TLS


def context_of(tls: TLS) -> ssl.SSLContext:
    """Return the context; raises UnreachableError if a file cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = tls.is_verified and tls.server_name is not None
    context.verify_mode = ssl.CERT_REQUIRED if tls.is_verified else ssl.CERT_NONE
    what = tls.cacertfile
    try:
        if tls.cacertfile:
            context.load_verify_locations(tls.cacertfile)
        if tls.certfile or tls.keyfile:
            what = tls.keyfile or tls.certfile
            context.load_cert_chain(tls.certfile or tls.keyfile, tls.keyfile or None, tls.password)
    except OSError as error:  # an SSLError, too
        raise UnreachableError(f"cannot use {what} for TLS: {error.strerror or error}") from None
    return context
