"""The last lines of the log: `/api/leveret/logs`."""

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.http.call import Answer, Call, Item, number, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes
from leveret.broker.process.logs import LEVELS
from leveret.broker.process.recent_log import KEPT, RECENT

ROUTES = Routes("node")
_LEVELS = tuple(name for name, value in LEVELS.items() if LEVELS["info"] <= value < LEVELS["none"])
_COUNT = 200


@ROUTES.get(
    "leveret/logs",
    doc=f"The last `lines` of the log of the process, the oldest first, of the {KEPT:,} that are in memory: "
    "those that `log.*.level` lets through, from info on. `last` is the number of the newest line, to go "
    "on after; `missed` how many of the lines after `after` are no longer there.",
    needs=Right.MONITORING,
    query=(
        Key("after", "integer", doc="`last` of the answer before: only lines since then"),
        Key("level", doc=f"the least level: {', '.join(f'`{name}`' for name in _LEVELS)}"),
        Key("count", "integer", doc=f"maximum number of lines, 1 to {KEPT}; {_COUNT} by default"),
    ),
)
def get_logs(call: Call) -> Answer:
    """Return the last lines."""
    query = call.query
    level, count = text(query, "level", "info"), number(query, "count", _COUNT)
    after = number(query, "after", 0) if "after" in query else None
    if level not in _LEVELS:
        raise bad_request(f"level must be one of {', '.join(_LEVELS)}")
    if not 1 <= count <= KEPT:
        raise bad_request(f"count must be from 1 to {KEPT}")
    if after is not None and after < 0:
        raise bad_request("after must not be negative")
    found = RECENT.find(after=after, level=level, count=count)
    lines = [
        {"number": line.number, "time": line.time, "level": line.level, "category": line.category,
         "message": json_text(line.text)}
        for line in found.lines
    ]  # fmt: skip
    return Item({"lines": lines, "last": found.last, "missed": found.missed})
