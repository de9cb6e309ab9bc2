"""SASL EXTERNAL: the name of a user in the certificate of a TLS client (after rabbit_auth_mechanism_ssl)."""

from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.tls.certificate import CertificateError, Peer, login_name
from leveret.broker.tls.options import CertificateLogin


def certificate_user(peer: Peer, login: CertificateLogin) -> str:
    """Return the name of the user whose certificate a client has presented; the user need not exist.

    Raises LoginRefusedError with RabbitMQ's texts: no certificate, none from a CA of the configuration, or no such
    name.
    """
    if not peer.is_verified:
        raise LoginRefusedError("TLS configuration is unsafe: ssl_options.verify must be verify_peer")
    if not peer.der:
        raise LoginRefusedError("connection peer presented no TLS (x.509) certificate")
    try:
        name = login_name(peer.der, login)
    except CertificateError as error:
        raise LoginRefusedError(f"the certificate cannot be read: {error}") from None
    if not name:
        raise LoginRefusedError(f"no name found: the certificate has no {login.source.replace('_', ' ')}")
    return name
