"""Vhosts: `/api/vhosts`, and their limits: `/api/vhost-limits`."""

from collections.abc import Callable, Mapping
from typing import Any

from leveret.broker.administration.access import Right, found_vhost, visible_vhosts
from leveret.broker.administration.vhosts import NO_TYPE, shown_vhost_limits
from leveret.broker.auth.users import VHOST_LIMITS
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, flag, text
from leveret.broker.http.errors import bad_request, vhost_not_found
from leveret.broker.http.route import Key, Routes, Scope, required
from leveret.broker.management import recorded_state
from leveret.broker.management.ranges import asked_ranges
from leveret.broker.management.users import tags_of
from leveret.broker.statistics import families
from leveret.broker.statistics.rates import Span
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

    statistics = call.broker.statistics
    return {
        "name": lambda vhost: vhost.name,
        "description": lambda vhost: vhost.description,
        "tags": lambda vhost: list(vhost.tags),
        "default_queue_type": lambda vhost: vhost.default_queue_type or NO_TYPE,
        "metadata": _metadata,
        "tracing": lambda vhost: vhost.tapping.firehose is not None,
        "cluster_state": lambda _vhost: {node: "running"},
        "protected_from_deletion": lambda vhost: vhost.is_protected,
        "message_stats": stats,
        **{name: count(name) for name in counted},
        **{f"{name}_details": details(name, span) for name, span in counted.items()},
    }


def _metadata(vhost: VHost) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type:
        shown["default_queue_type"] = vhost.default_queue_type
    if vhost.is_protected:
        shown["protected_from_deletion"] = True
    return shown


@ROUTES.list("vhosts", needs=Right.MANAGEMENT)
def list_vhosts(call: Call) -> Answer:
    """Vhosts that the user may see."""
    return Listing(visible_vhosts(call.broker, call.actor), fields(call), sort=("name",))


@ROUTES.get("vhosts/{vhost}")
def get_vhost(call: Call) -> Answer:
    """One vhost."""
    vhost = found_vhost(call.broker, call.names["vhost"])
    return Item({name: compute(vhost) for name, compute in fields(call).items()})


@ROUTES.put(
    "vhosts/{vhost}",
    body=(
        Key("description"),
        Key("tags", "any", doc="a list, or one text with commas"),
        Key("default_queue_type", doc="the type of queues declared without one"),
        Key("tracing", "boolean", doc="switches the firehose on or off, until the broker stops"),
    ),
    state=recorded_state.vhost,
)
def put_vhost(call: Call) -> Answer:
    """Create a vhost, in which its creator gets all permissions, or set its metadata."""
    name = call.names["vhost"]
    # null is as if the key were not there, except for `tracing`, as in RabbitMQ
    body = {key: value for key, value in call.body().items() if value is not None or key == "tracing"}
    tags = tags_of(body.get("tags") or [])
    traced = flag(body, "tracing") if "tracing" in body else None
    is_new = name not in call.broker.vhosts
    call.administration.vhosts.put(
        call.actor,
        name,
        description=text(body, "description"),
        tags=tags,
        default_queue_type=text(body, "default_queue_type"),
    )
    if is_new and call.actor is not None:
        call.administration.users.set_permissions(
            call.actor, name, call.actor.name, configure=".*", write=".*", read=".*"
        )
    if traced is not None:
        call.administration.vhosts.trace(call.actor, name, traced=traced)
    return Done(201 if is_new else 204)


@ROUTES.delete("vhosts/{vhost}", state=recorded_state.vhost)
def delete_vhost(call: Call) -> None:
    """Delete a vhost with everything in it."""
    call.administration.vhosts.delete(call.actor, call.names["vhost"])


@ROUTES.delete(
    "vhosts/{vhost}/deletion/protection",
    doc="Allow the deletion of a vhost.",
    state=recorded_state.vhost,
    arguments={"is_protected": False},
)
@ROUTES.post(
    "vhosts/{vhost}/deletion/protection", state=recorded_state.vhost, arguments={"is_protected": True}
)
def protect_vhost(call: Call, *, is_protected: bool) -> None:
    """Protect a vhost from deletion."""
    call.administration.vhosts.protect(call.actor, call.names["vhost"], is_protected=is_protected)


@ROUTES.post("vhosts/{vhost}/start/{node}")
def start_vhost(call: Call) -> None:
    """Start a vhost that failed."""
    node = call.names["node"]
    if node != call.broker.node_name:
        raise bad_request(f"Request to node {node} failed with nodedown")
    found_vhost(call.broker, call.names["vhost"])


# -- limits -----------------------------------------------------------------------------------------------------------


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
    body=(required("value", "integer", doc="negative for no limit"),),
    group="limits",
    state=recorded_state.vhost_limits,
)
def put_vhost_limit(call: Call) -> None:
    """Set a limit of a vhost."""
    vhost = call.names["vhost"]
    value = call.body("value")["value"]
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    limits = shown_vhost_limits(call.broker.users.vhost_limits(vhost)) | {call.names["limit"]: value}
    call.administration.policies.set_parameter(call.actor, vhost, LIMITS, LIMITS_NAME, limits)


@ROUTES.delete("vhost-limits/{vhost}/{limit}", group="limits", state=recorded_state.vhost_limits)
def delete_vhost_limit(call: Call) -> None:
    """Remove a limit of a vhost."""
    vhost = found_vhost(call.broker, call.names["vhost"]).name
    limits = shown_vhost_limits(call.broker.users.vhost_limits(vhost))
    if limits.pop(call.names["limit"], None) is not None:
        call.administration.vhosts.set_limits(call.actor, vhost, limits)
