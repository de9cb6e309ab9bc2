"""The web page: its files, for paths that are not below `/api/`. They need no login; what they show does."""

from leveret.broker.http.browsers import SECURE_HEADERS
from leveret.broker.http.call import Call, Content, Steps
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Operation
from leveret.broker.page.assets import assets

_NOT_MODIFIED = 304


def has(path: str) -> bool:
    """Return whether a path may be one of the page."""
    return path == "/" or path.startswith("/static/")


def get_file(call: Call) -> Steps:
    """Return a file of the page."""
    found = (assets() if assets.cache_info().currsize else (yield assets)).get(call.names["path"])
    if found is None:
        raise not_found()
    headers = {
        **SECURE_HEADERS,
        "etag": found.etag,
        "cache-control": found.cache_control,
        "vary": "accept-encoding",
    }
    if found.etag in call.headers.get("if-none-match", ""):
        return Content((), found.content_type, headers, _NOT_MODIFIED)
    if "gzip" in call.headers.get("accept-encoding", ""):
        return Content((found.packed,), found.content_type, {**headers, "content-encoding": "gzip"})
    return Content((found.content,), found.content_type, headers)


OPERATION = Operation(get_file, "A file of the web page.", None, kind="text")
