"""Contexts of the standard library's TLS, made from the options of a listener (driver).

Theory. A client names the host it wants (SNI) in its first message, and the connection goes on with that host's
context. This replaces the certificate and the CAs, but **not whether a certificate is asked for**, nor versions and
ciphers: those stay the first context's. So the first context asks for a certificate if any host wants one, and what a
host demands beyond is checked when the handshake is over (`Context.refusal`), before any octet of the client is read.
A resumed session would skip that check of a chain, so there is no resumption where one is needed.

OpenSSL opens the names that it is given itself, whatever they lead to. It gets copies of what `read_named` has read.
"""

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from leveret.broker.process.named_files import private_copy, read_named
from leveret.broker.tls.options import SUITES_13, VERSIONS, TLSFileError, TLSOptions, older_ciphers


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


_NUMBERS = dict(zip(VERSIONS, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3), strict=True))


class Context(ssl.SSLContext):
    """A context, and what it demands of clients beyond OpenSSL's checks."""

    demands_certificate = False
    verifies = False  # True if a certificate that a client presents was issued by a CA of the configuration
    depth: int | None = None
    checks = False  # True if there is something to check at the end of a handshake

    def refusal(self, handshake: Any) -> str:
        """Return why to refuse a client after its handshake (`ssl.SSLObject` with this context); '' for no reason."""
        if not self.checks:
            return ""
        if handshake.session_reused:
            return "the client has resumed a session, which is not allowed here"
        has_certificate = handshake.getpeercert(binary_form=True) is not None
        if self.demands_certificate and not has_certificate:
            return "the client presented no certificate"
        if self.depth is not None and has_certificate:
            count = len(_verified_chain(handshake)) - 2  # without the client's own and the root
            if count > self.depth:
                return (
                    f"the client's certificate has {count} intermediate certificates, more than {self.depth}"
                )
        return ""


def make_context(options: TLSOptions) -> Context:
    """Return the context of a listener. Raises TLSFileError."""
    rows = options.of_hosts
    contexts = {name: _context(each) for name, each in rows.items()}
    first = contexts[""]
    if len(contexts) > 1:
        _share(contexts, rows)
        first.sni_callback = partial(_choose, contexts)
    if first.checks or not options.reuse_sessions:
        for context in contexts.values():
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
    return first


def _share(contexts: dict[str, Context], rows: dict[str, TLSOptions]) -> None:
    """Give the first context what the handshake takes from it whatever the host, and all what follows from that."""
    first = contexts[""]
    modes = {context.verify_mode for context in contexts.values()}
    verified = [name for name, context in contexts.items() if context.verifies]
    first.verify_mode = modes.pop() if len(modes) == 1 else ssl.CERT_OPTIONAL
    for name in verified:
        first.verify_flags |= contexts[name].verify_flags
    for context in contexts.values():
        context.checks = context.checks or bool(verified)
        if not context.verifies:  # a certificate may be presented all the same
            for name in verified:
                _load_authorities(context, rows[name])


def _choose(contexts: dict[str, Context], handshake: Any, name: str | None, _first: ssl.SSLContext) -> None:
    """Choose the context of the host that a client wants."""
    handshake.context = host_of(contexts, (name or "").lower())


def host_of(rows: dict[str, Context], name: str) -> Context:
    """Return the row of a host: its own, that of `*.` and the rest of its name, or the first, which is of ''."""
    return rows.get(name) or rows.get(f"*.{name.partition('.')[2]}") or rows[""]


def _context(options: TLSOptions) -> Context:
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    versions = [version for version in VERSIONS if version in (options.versions or VERSIONS)]
    if options.ciphers:
        _set_ciphers(context, options)
        if not any(name in options.ciphers for name in SUITES_13):
            versions = [version for version in versions if version != VERSIONS[-1]]
    context.minimum_version, context.maximum_version = _NUMBERS[versions[0]], _NUMBERS[versions[-1]]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if options.honor_cipher_order:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_certificate(context, options)
    if options.dhfile is not None:
        try:
            load_dh_parameters(context, options.dhfile)
        except (OSError, ValueError) as error:
            raise _unusable(options, "dhfile", options.dhfile, error) from None
    if options.verify == "verify_peer":
        _verify(context, options)
    return context


def _verify(context: Context, options: TLSOptions) -> None:
    context.verifies = True
    context.verify_mode = ssl.CERT_REQUIRED if options.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    context.demands_certificate = options.fail_if_no_peer_cert
    context.depth = options.depth
    context.checks = options.depth is not None
    _load_authorities(context, options)
    if options.crlfile is not None:
        is_whole = options.crl_check == "true"
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN if is_whole else ssl.VERIFY_CRL_CHECK_LEAF


def _load_authorities(context: Context, options: TLSOptions) -> None:
    if options.cacertfile is not None:
        _load_trusted(context, options.cacertfile, options)
    if options.crlfile is not None:
        before = context.cert_store_stats()["crl"]
        _load_trusted(context, options.crlfile, options, "crlfile")
        if context.cert_store_stats()["crl"] == before:
            raise TLSFileError(
                f"{options.prefix}.crlfile = {options.crlfile} has no list of revoked certificates"
            )


def _load_certificate(context: Context, options: TLSOptions) -> None:
    for key, path in (("certfile", options.certfile), ("keyfile", options.keyfile)):
        if path is not None:
            _check_readable(options, key, path)
    keyfile = options.keyfile or options.certfile
    if options.certfile is None or keyfile is None:
        raise TLSFileError(f"{options.prefix}.certfile is missing")
    try:
        load_certificate(context, options.certfile, keyfile, lambda: options.password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            what = f"{options.prefix}.keyfile = {keyfile} is not the key of the certificate in {options.certfile}"
        elif b"ENCRYPTED" in read_named(keyfile):
            what = f"{options.prefix}.password is not that of the key in {keyfile}"
        else:
            what = (
                f"{options.prefix}.certfile = {options.certfile} with the key in {keyfile} cannot be used "
                f"({reason}): both must be PEM"
            )
        raise TLSFileError(what) from None


def _load_trusted(context: Context, path: Path, options: TLSOptions, key: str = "cacertfile") -> None:
    _check_readable(options, key, path)
    try:
        load_authorities(context, path)
    except (OSError, ValueError) as error:
        raise _unusable(options, key, path, error) from None


def _check_readable(options: TLSOptions, key: str, path: Path) -> None:
    try:
        read_named(path)
    except OSError as error:
        raise _unusable(options, key, path, error) from None


def _unusable(options: TLSOptions, key: str, path: Path, error: Exception) -> TLSFileError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return TLSFileError(f"{options.prefix}.{key} = {path} cannot be used: {reason}")


def _set_ciphers(context: Context, options: TLSOptions) -> None:
    names = older_ciphers(options)
    for name in names:
        try:
            context.set_ciphers(name)
        except ssl.SSLError:
            raise TLSFileError(
                f"{options.prefix}.ciphers: {name} is no cipher suite of this OpenSSL"
            ) from None
    if names:
        context.set_ciphers(":".join(names))


def _verified_chain(handshake: Any) -> list[Any]:
    """Return the chain of a client's certificate from its own to the root."""
    public = getattr(handshake, "get_verified_chain", None)  # from Python 3.13 on
    return list((public or handshake._sslobj.get_verified_chain)() or ())  # noqa: SLF001 - the same before it
