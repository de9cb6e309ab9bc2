"""What a variable queue says of itself: `backing_queue_status`, under RabbitMQ's names where it has them."""
# ruff: noqa: SLF001 - friends: it looks into what it checks

from math import inf

from storage.variable_queue import VariableQueue


def status(queue: VariableQueue) -> dict[str, object]:
    """What an administrator may want to know of one queue; costs a look at each entry of q3 and q2.

    `delta` is a list as RabbitMQ's management writes it: the word, first seq_id, messages, transient ones among them,
    the seq_id behind the last. Rates are messages per second. Our own keys are octets of content in memory (of ready
    and of unacked messages), octets of bodies in the delta, messages by state, and how often which number changed its
    state.
    """
    rates = queue.rates
    queue.count_octets()
    edges: tuple[object, object] = ("undefined", "undefined")
    if queue.delta_count:
        edges = queue.delta_start, queue.delta_stop
    return {
        "mode": "lazy" if queue.lazy else "default",
        "q1": len(queue.q1),
        "q2": len(queue.q2),
        "delta": ["delta", edges[0], queue.delta_count, queue.delta_paged, edges[1]],
        "q3": len(queue.q3),
        "q4": len(queue.q4) + len(queue.returned),
        "len": queue.ready_count,
        "target_ram_count": "infinity" if queue.target_ram_count == inf else queue.target_ram_count,
        "next_seq_id": queue.next_seq,
        "next_deliver_seq_id": _next_out(queue),
        "avg_ingress_rate": rates.published,
        "avg_egress_rate": rates.fetched,
        "avg_ack_ingress_rate": rates.fetched,
        "avg_ack_egress_rate": rates.acked,
        "messages_ready_ram": queue.ram_msg_count,
        "messages_unacknowledged_ram": queue.ram_ack_count,
        "ready_bytes_ram": queue.ram_octets,
        "unacknowledged_bytes_ram": queue.unacked_octets,
        "delta_bytes": queue.delta_octets,
        "damaged": queue.damaged,
        "states": queue.states(),
        "transitions": dict(queue.transitions or {}),
    }


def _next_out(queue: VariableQueue) -> int:
    """The seq_id of the message at the head, or that of the next one to be published."""
    if queue.returned:
        return queue.returned.first()[0]
    if queue.q4:
        return queue._q4_first
    if queue.q3:
        return queue.q3[0].seq_id
    return queue.delta_start if queue.delta_count else queue.next_seq
