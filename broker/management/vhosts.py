"""Vhosts: `/api/vhosts`, and their limits: `/api/vhost-limits`."""

from collections.abc import Callable, Mapping
from typing import Any

from leveret.broker.administration.access import Right, found_vhost, visible_vhosts
from leveret.broker.administration.topology import NO_TYPE, metadata_of
from leveret.broker.auth.users import VHOST_LIMITS, limits_by_name
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Values
from leveret.broker.http.errors import bad_request, vhost_not_found
from leveret.broker.http.listing import asked_ranges
from leveret.broker.http.route import Key, Routes, Scope
from leveret.broker.management.users import LIMIT, State, tags_of
from leveret.broker.statistics import families
from leveret.broker.statistics.series import Span
from leveret.broker.statistics.statistics import named
from leveret.broker.vhost.parameters import LIMITS, LIMITS_NAME
from leveret.broker.vhost.vhost import VHost

ROUTES = Routes("vhosts", needs=Right.ADMINISTRATOR)


def fields(call: Call) -> Mapping[str, Callable[[VHost], Any]]:
    """Return the keys of a vhost, and how their values are computed."""
    node = call.broker.node_name
    ranges = asked_ranges(call.query)
    counted = {
        **dict.fromkeys(("messages", *families.LENGTHS), ranges.lengths),
        **dict.fromkeys(families.OCTETS, ranges.data),
    }

    def stats(vhost: VHost) -> dict[str, Any]:
        values = named(families.VHOSTS, families.VHOSTS.stats, statistics.vhost_row(vhost))
        return statistics.stats(statistics.series(vhost), families.VHOSTS, values, ranges.messages)

    def count(name: str) -> Callable[[VHost], int]:
        read = families.VHOSTS.reader(name)
        return lambda vhost: read(statistics.vhost_row(vhost))

    def details(name: str, span: Span | None) -> Callable[[VHost], Any]:
        return lambda vhost: statistics.detail(statistics.series(vhost), families.VHOSTS, name, span)

    no_type = "classic" if call.is_4 else NO_TYPE
    metadata: dict[str, Callable[[VHost], Any]] = {
        "name": lambda vhost: vhost.name,
        "description": lambda vhost: vhost.metadata.description,
        "tags": lambda vhost: list(vhost.metadata.tags),
        "default_queue_type": lambda vhost: vhost.metadata.default_queue_type or no_type,
        "metadata": metadata_of,
        "tracing": lambda vhost: vhost.taps.firehose is not None,
        "cluster_state": lambda _vhost: {node: "running"},
        "protected_from_deletion": lambda vhost: vhost.metadata.protected_from_deletion,
    }
    if call.broker.place == "front":  # the processes have the counts
        return metadata
    statistics = call.broker.statistics
    return {
        **metadata,
        "message_stats": stats,
        **{name: count(name) for name in counted},
        **{f"{name}_details": details(name, span) for name, span in counted.items()},
    }


def _state(call: Call) -> State:
    found = call.broker.vhosts.get(call.names["vhost"])
    if found is None:
        return None
    metadata = found.metadata
    return metadata._asdict() | {"tags": list(metadata.tags), "tracing": found.taps.firehose is not None}


@ROUTES.list("vhosts", needs=Right.MANAGEMENT)
def list_vhosts(call: Call) -> Answer:
    """Vhosts that the user may see."""
    return Listing(visible_vhosts(call.broker, call.actor), fields(call), sort=("name",))


@ROUTES.get("vhosts/{vhost}")
def get_vhost(call: Call, vhost: str) -> Answer:
    """One vhost."""
    found = found_vhost(call.broker, vhost)
    return Item({name: compute(found) for name, compute in fields(call).items()})


@ROUTES.put(
    "vhosts/{vhost}",
    body=(
        Key("description"),
        Key("tags", "any", doc="a list, or one text with commas"),
        Key("default_queue_type", doc="the type of queues declared without one"),
        Key("tracing", "boolean", doc="switches the firehose on or off, until the broker stops"),
    ),
    state=_state,
)
def put_vhost(call: Call, vhost: str) -> Answer:
    """Create a vhost, in which its creator gets all permissions, or set its metadata."""
    # null is as if the key were not there, except for `tracing`, as in RabbitMQ
    given = call.body().items()
    body = Values({key: value for key, value in given if value is not None or key == "tracing"})
    tags = tags_of(body.get("tags") or [])
    traced = body.flag("tracing") if "tracing" in body else None
    is_new = vhost not in call.broker.vhosts
    call.administration.vhosts.put(
        call.actor,
        vhost,
        description=body.text("description"),
        tags=tags,
        default_queue_type=body.text("default_queue_type"),
    )
    if is_new and call.actor is not None and not call.broker.users_refusal:
        call.administration.users.set_permissions(
            call.actor, vhost, call.actor.name, configure=".*", write=".*", read=".*"
        )
    if traced is not None:
        call.administration.vhosts.trace(call.actor, vhost, traced=traced)
    return Done(201 if is_new else 204)


@ROUTES.delete("vhosts/{vhost}", state=_state)
def delete_vhost(call: Call, vhost: str) -> None:
    """Delete a vhost with everything in it."""
    call.administration.vhosts.delete(call.actor, vhost)


@ROUTES.delete(
    "vhosts/{vhost}/deletion/protection",
    doc="Allow the deletion of a vhost.",
    state=_state,
    arguments={"is_protected": False},
)
@ROUTES.post("vhosts/{vhost}/deletion/protection", state=_state, arguments={"is_protected": True})
def protect_vhost(call: Call, vhost: str, *, is_protected: bool) -> None:
    """Protect a vhost from deletion."""
    call.administration.vhosts.protect(call.actor, vhost, is_protected=is_protected)


@ROUTES.post("vhosts/{vhost}/start/{node}")
def start_vhost(call: Call, vhost: str, node: str) -> None:
    """Start a vhost that failed."""
    if node != call.broker.node_name:
        raise bad_request(f"Request to node {node} failed with nodedown")
    found_vhost(call.broker, vhost)


# -- limits -----------------------------------------------------------------------------------------------------------


def limits_state(call: Call) -> State:
    """Return the limits of the vhost of a path, for the audit log."""
    return limits_by_name(call.broker.users.vhost_limits(call.names["vhost"])) or None


@ROUTES.list(
    "vhost-limits",
    "vhost-limits/{vhost}",
    needs=Right.MANAGEMENT,
    scope=Scope.VISIBLE,
    group="limits",
    has_head=False,
)
def list_vhost_limits(call: Call) -> Answer:
    """Limits of a vhost, or of all that the user may see."""
    return Listing(call.administration.vhosts.limits(call.actor, call.vhost), sort=("vhost",), is_paged=False)


@ROUTES.put(
    "vhost-limits/{vhost}/{limit}",
    doc=f"Set one of {', '.join(VHOST_LIMITS)}.",
    body=LIMIT,
    group="limits",
    state=limits_state,
)
def put_vhost_limit(call: Call, vhost: str, limit: str) -> None:
    """Set a limit of a vhost."""
    value = call.body("value")["value"]
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    limits = limits_by_name(call.broker.users.vhost_limits(vhost)) | {limit: value}
    call.administration.policies.set_parameter(call.actor, vhost, LIMITS, LIMITS_NAME, limits)


@ROUTES.delete("vhost-limits/{vhost}/{limit}", group="limits", state=limits_state)
def delete_vhost_limit(call: Call, vhost: str, limit: str) -> None:
    """Remove a limit of a vhost."""
    found_vhost(call.broker, vhost)
    limits = limits_by_name(call.broker.users.vhost_limits(vhost))
    if limits.pop(limit, None) is not None:
        call.administration.policies.set_parameter(call.actor, vhost, LIMITS, LIMITS_NAME, limits)
