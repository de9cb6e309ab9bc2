"""The package ldap3, an extra: loaded when it is needed, and its rules for special characters. Pure.

Of the clients for Python it is the one that needs no compiler (docs/adr/0040).
"""

import sys
import warnings
from importlib import import_module
from typing import Any


def ldap3() -> Any:
    """Return the package; raises ImportError. The first call is made before there are threads that use it."""
    if "ldap3" not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it uses old names of its codec
            import_module("ldap3.utils.conv")
            import_module("ldap3.utils.dn")
    return import_module("ldap3")


def escaped_in_name(text: str) -> str:
    """Return a text, which must not be empty, as the value of an attribute in the name (DN) of an entry."""
    escaped: str = ldap3().utils.dn.escape_rdn(text)
    return escaped


def escaped_in_condition(text: str) -> str:
    """Return a text as the value of an attribute in a condition (filter)."""
    escaped: str = ldap3().utils.conv.escape_filter_chars(text)
    return escaped
