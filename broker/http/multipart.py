"""The fields of a form that a browser sends as `multipart/form-data`."""

import re

from leveret.broker.http.errors import bad_request

_BOUNDARY = re.compile(r'boundary="?([^";]{1,200})"?')
_NAME = re.compile(rb'content-disposition:[^\r\n]*[; ]name="([^"\r\n]*)"', re.IGNORECASE)


def is_form(content_type: str) -> bool:
    """Return whether a body of this type is such a form."""
    return content_type.lower().startswith("multipart/form-data")


def form_fields(content: bytes, content_type: str) -> dict[str, bytes]:
    """Return the values of a form by the names of the fields; of repeated ones the first.

    Args:
        content: the body.
        content_type: its type, with the boundary.

    Raises:
        ApiError: the type has no boundary.

    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise bad_request("multipart/form-data without a boundary")
    fields: dict[str, bytes] = {}
    delimiter = b"\r\n--" + boundary[1].encode("utf-8", "surrogateescape")
    for part in (b"\r\n" + content).split(delimiter)[1:]:
        head, separator, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if separator and name is not None:
            fields.setdefault(name[1].decode("utf-8", "replace"), value)
    return fields
