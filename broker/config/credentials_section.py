"""The section of the rules for passwords: its settings are combined here."""

from typing import Any

from leveret.broker.auth.name_patterns import InvalidPatternError, Patterns
from leveret.broker.auth.passwords import SHA256, SHA512
from leveret.broker.config.sections import CredentialsConfig

_MODULES = {
    "rabbit_credential_validator_accept_everything": "accept_everything",
    "rabbit_credential_validator_min_password_length": "min_length",
    "rabbit_credential_validator_password_regexp": "regexp",
}
"""RabbitMQ's names of the validators."""


def credentials_config(parts: dict[str, Any], problems: list[str], *, python: bool) -> CredentialsConfig:
    """Return the settings of the rules.

    Args:
        parts: the settings by the names of their attributes.
        problems: gets a sentence about each inconsistency.
        python: true if Python's `re` may be used for patterns that RE2 refuses.

    """
    parts["validator"] = _MODULES.get(parts.get("validator", ""), parts.get("validator", "accept_everything"))
    found = CredentialsConfig(**parts)
    if found.validator not in _MODULES.values():
        problems.append(
            f"credential_validator.validation_backend must be one of {', '.join(_MODULES.values())}"
        )
    if found.hashing not in {SHA256, SHA512}:
        problems.append(f"password_hashing_module must be {SHA256} or {SHA512}")
    if found.validator == "min_length" and found.min_length is None:
        problems.append("credential_validator.min_length is missing")
    if found.validator == "regexp":
        if not found.regexp:
            problems.append("credential_validator.regexp is missing")
        try:
            Patterns(python=python).compile(found.regexp)
        except InvalidPatternError as error:
            problems.append(f"credential_validator.regexp: {error}")
    return found
