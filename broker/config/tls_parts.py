"""Combines the settings of TLS: the options of a listener from the keys with its prefix."""

from collections.abc import Mapping
from typing import Any, Final

from leveret.broker.config import tls_keys
from leveret.broker.config.sections import HTTPTLSConfig
from leveret.broker.tls.options import VERSIONS, CertificateLogin, HostOptions, TLSOptions, problems_of

AMQP: Final = "ssl_options"
_HOST: Final = "sni.$name."
_PLAIN: Final = (
    "certfile", "keyfile", "cacertfile", "crlfile", "dhfile", "password", "verify", "fail_if_no_peer_cert", "depth",
    "honor_cipher_order", "crl_check", "reuse_sessions", "reload_interval",
)  # fmt: skip

Families = Mapping[str, Mapping[str, Any]]


def add(
    parts: dict[str, Any],
    values: Mapping[str, Any],
    families: Families,
    problems: list[str],
    warnings: list[str],
) -> None:
    """Add everything about TLS to the parts of a configuration.

    Args:
        parts: attributes of the configuration, of which sections are mappings.
        values: written keys, or attributes, with their parsed values.
        families: rows with `$name`, each with the parsed values by name.
        problems: gets a sentence for what cannot be carried out.
        warnings: gets a sentence if options have no effect.

    """
    for name, port in (("prometheus", tls_keys.METRICS_PORT), ("management", tls_keys.MANAGEMENT_PORT)):
        tls = http_listener(f"{name}.ssl", port, values, families, problems)
        is_plain = tls is None or any(f"{name}.{field}" in values for field in ("host", "port"))
        parts[name] |= {"tls": tls, "has_plain": is_plain}
    source = values.get("ssl_cert_login_from", CertificateLogin().source)
    source = "subject_alternative_name" if source == "subject_alt_name" else source
    parts["certificate_login"] = CertificateLogin(source=source, **parts.pop("certificate_login", {}))
    options = parts["tls"] = options_of(AMQP, values, families)
    parts["tls_listeners"] = tuple(dict.fromkeys(families.get("listeners.ssl.$name", {}).values()))
    if parts["tls_listeners"]:
        problems += problems_of(options)
    elif options != TLSOptions():
        warnings.append("ssl_options.* has no effect: there is no TLS listener, see listeners.ssl.$name")


def options_of(prefix: str, values: Mapping[str, Any], families: Families) -> TLSOptions:
    """Return the options that keys with a prefix set.

    Args:
        prefix: what the keys begin with, without the dot.
        values: written keys with their parsed values.
        families: rows with `$name`, each with the parsed values by name.

    """
    found = {name: values[f"{prefix}.{name}"] for name in _PLAIN if f"{prefix}.{name}" in values}
    versions = set(families.get(f"{prefix}.versions.$name", {}).values())
    ciphers = families.get(f"{prefix}.ciphers.$name", {})
    return TLSOptions(
        prefix=prefix,
        versions=tuple(version for version in VERSIONS if version in versions),
        ciphers=tuple(dict.fromkeys(ciphers[name] for name in sorted(ciphers, key=_in_order))),
        hosts=_hosts(prefix, families),
        **found,
    )


def _hosts(prefix: str, families: Families) -> dict[str, HostOptions]:
    rows: dict[str, dict[str, Any]] = {}
    for field in HostOptions.__struct_fields__:
        for name, value in families.get(f"{prefix}.{_HOST}{field}", {}).items():
            is_boolean = field == "fail_if_no_peer_cert"
            rows.setdefault(name, {})[field] = value == "true" if is_boolean else value
    return {name: HostOptions(**row) for name, row in rows.items()}


def http_listener(
    prefix: str, port: int, values: Mapping[str, Any], families: Families, problems: list[str]
) -> HTTPTLSConfig | None:
    """Return the HTTPS listener that keys with a prefix configure; None if none of them is set to anything.

    Args:
        prefix: what the keys begin with, without the dot.
        port: the default port.
        values: written keys with their parsed values.
        families: rows with `$name`, each with the parsed values by name.
        problems: gets a sentence for what cannot be carried out.

    """
    options = options_of(prefix, values, families)
    if options == TLSOptions(prefix=prefix) and f"{prefix}.port" not in values:
        return None
    problems += problems_of(options)
    return HTTPTLSConfig(
        host=values.get(f"{prefix}.ip", "127.0.0.1"), port=values.get(f"{prefix}.port", port), options=options
    )


def _in_order(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() else 0, name)
