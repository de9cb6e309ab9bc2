"""All cases, and the rows of the error table that cannot be one."""

from conformance import (
    rows_access,
    rows_alarms,
    rows_bindings,
    rows_confirms,
    rows_connection,
    rows_consume,
    rows_consumers,
    rows_dead_letters,
    rows_delivery,
    rows_exchanges,
    rows_expires,
    rows_frames,
    rows_handshake,
    rows_limits,
    rows_policies,
    rows_priorities,
    rows_publish,
    rows_queue_life,
    rows_queues,
    rows_quorum,
    rows_redelivery,
    rows_routing,
    rows_settle,
    rows_switched,
    rows_ttl,
)
from conformance.cases import Case

LAST_ROW = 111
CASES: list[Case] = [
    *rows_handshake.ROWS,
    *rows_connection.ROWS,
    *rows_alarms.ROWS,
    *rows_frames.ROWS,
    *rows_exchanges.ROWS,
    *rows_bindings.ROWS,
    *rows_routing.ROWS,
    *rows_queues.ROWS,
    *rows_queue_life.ROWS,
    *rows_quorum.ROWS,
    *rows_publish.ROWS,
    *rows_consume.ROWS,
    *rows_consumers.ROWS,
    *rows_settle.ROWS,
    *rows_delivery.ROWS,
    *rows_confirms.ROWS,
    *rows_priorities.ROWS,
    *rows_policies.ROWS,
    *rows_access.ROWS,
    *rows_ttl.ROWS,
    *rows_expires.ROWS,
    *rows_limits.ROWS,
    *rows_redelivery.ROWS,
    *rows_dead_letters.ROWS,
    *rows_switched.ROWS,
]
BY_ID = {case.id: case for case in CASES}

_STREAMS = "there are no streams"
NOT_APPLICABLE = {
    13: "virtual hosts do not fail by themselves on one node",
    49: "a limit of a whole cluster",
    66: "there are no protected queues",
    90: _STREAMS + "; for the pseudo-queue of direct reply-to see `basic.reply-to-get`",
    91: _STREAMS,
    92: _STREAMS,
    94: _STREAMS,
    109: "queues do not crash apart from their broker",
    111: "there is no metadata store that could time out",
}
