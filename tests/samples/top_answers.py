"""Answers of the management API, for tests."""

from typing import Any

from leveret.broker.cli.top.model import Answer, Broker, Model

OVERVIEW: dict[str, Any] = {
    "node": "rabbit@here",
    "leveret_version": "0.2.0",
    "message_stats": {
        "publish_details": {"rate": 1234.5},
        "deliver_get_details": {"rate": 1200.0},
        "ack_details": {"rate": 0.4},
    },
    "queue_totals": {"messages_ready": 12345, "messages_unacknowledged": 67},
    "object_totals": {"queues": 10000, "connections": 3, "channels": 4, "consumers": 5, "exchanges": 7},
}
NODE: dict[str, Any] = {
    "uptime": 93_784_000,
    "mem_used": 50 << 20,
    "mem_limit": 4 << 30,
    "mem_alarm": False,
    "disk_free": 20 << 30,
    "disk_free_limit": 50_000_000,
    "disk_free_alarm": False,
    "fd_used": 36,
    "fd_total": 20_000,
}


def queue(name: str, ready: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "vhost": "/",
        "messages_ready": ready,
        "messages_unacknowledged": 0,
        "message_stats": {"publish_details": {"rate": 12.0}},
        "consumers": 1,
        "memory": 2000,
        "state": "running",
        "type": "classic",
        "durable": True,
        **more,
    }


def page(*items: dict[str, Any], number: int = 1, pages: int = 1, found: int | None = None) -> dict[str, Any]:
    filtered = len(items) if found is None else found
    return {
        "total_count": filtered,
        "filtered_count": filtered,
        "item_count": len(items),
        "page": number,
        "page_count": pages,
        "items": list(items),
    }


def answered(model: Model, content: dict[str, Any], **node: Any) -> Model:
    model.take(Answer(model.question(), Broker(OVERVIEW, {**NODE, **node}), content))
    return model
