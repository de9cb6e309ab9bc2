"""Settings of the node, numbers of logins, features, and lists of what is not here."""

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.auth.login_throttle import LoginCounts
from leveret.broker.auth.passwords import Password, hash_password
from leveret.broker.http.call import Answer, Call, Content, Done, Item, Listing, Steps
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Routes, required
from leveret.broker.scheduling.time_slices import portions

ROUTES = Routes("node", needs=Right.ADMINISTRATOR)
STEP = 200  # queues that one step looks at
FEATURE_FLAGS = {
    "classic_mirrored_queue_version": "versions of classic mirrored queues",
    "classic_queue_type_delivery_support": "deliveries of classic queues by their type",
    "detailed_queues_endpoint": "a list of queues with all their fields",
    "direct_exchange_routing_v2": "a faster index of direct exchanges",
    "drop_unroutable_metric": "a count of unroutable messages that were dropped",
    "empty_basic_get_metric": "a count of basic.get on empty queues",
    "feature_flags_v2": "the second form of feature flags",
    "implicit_default_bindings": "bindings of the default exchange that are not stored",
    "listener_records_in_ets": "listeners that are not stored",
    "maintenance_mode_status": "maintenance mode",
    "message_containers": "messages independent of their protocol",
    "quorum_queue": "queues of type quorum",
    "restart_streams": "restarts of streams",
    "stream_filtering": "filters of streams",
    "stream_queue": "queues of type stream",
    "stream_sac_coordinator_unblock_group": "single active consumers of streams",
    "stream_single_active_consumer": "single active consumers of streams",
    "stream_update_config_command": "changes of the retention of streams",
    "tracking_records_in_ets": "connections that are not stored",
    "user_limits": "limits of users",
    "virtual_host_metadata": "descriptions and tags of vhosts",
}
"""The feature flags of RabbitMQ 3.13. They are enabled, because clients refuse to work with a broker without them."""
FEATURE_FLAGS_4 = {  # those that 4.3 has, too
    "khepri_db": "definitions in Khepri",
    "message_containers_deaths_v2": "the second form of dead letters",
    "quorum_queue_non_voters": "members of quorum queues that do not vote",
    "rabbit_exchange_type_local_random": "exchanges of type x-local-random",
    **{f"rabbitmq_4.{minor}.0": f"what 4.{minor} needs of all nodes" for minor in range(4)},
    "tie_binding_to_dest_with_keep_while_cond": "bindings that end with their destination",
    "topic_binding_projection_v4": "the fourth index of topic exchanges",
    "topic_binding_projection_v5": "the fifth index of topic exchanges",
    "track_qq_members_uids": "ids of members of quorum queues",
}
_REMOVED = "removed"
DEPRECATED = {
    "classic_queue_mirroring": (_REMOVED, "copies of classic queues on other nodes"),
    "global_qos": ("permitted_by_default", "one prefetch count for all consumers of a channel"),
    "management_metrics_collection": ("permitted_by_default", "rates and samples in this API"),
    "queue_master_locator": ("permitted_by_default", "the argument x-queue-master-locator of queues"),
    "ram_node_type": (_REMOVED, "nodes that keep definitions in memory alone"),
    "transient_nonexcl_queues": ("permitted_by_default", "queues that are neither durable nor exclusive"),
}
"""The features that RabbitMQ 3.13 or 4.3 deprecates, with their phase; those that Leveret does not have are removed."""
PHASES_4 = dict.fromkeys(
    ("global_qos", "queue_master_locator", "transient_nonexcl_queues"), "denied_by_default"
)
"""The phases that are others in 4.3."""


def _flags(call: Call) -> dict[str, str]:
    return FEATURE_FLAGS | FEATURE_FLAGS_4 if call.is_4 else FEATURE_FLAGS


@ROUTES.list("feature-flags")
def list_feature_flags(call: Call) -> Answer:
    """Feature flags."""
    rows = [
        {"name": name, "desc": doc, "doc_url": "", "state": "enabled", "stability": "stable", "provided_by": "rabbit"}
        for name, doc in _flags(call).items()
    ]  # fmt: skip
    return Listing(rows, sort=("name",), is_paged=False)


@ROUTES.put("feature-flags/{name}/enable")
def enable_feature_flag(call: Call, name: str) -> None:
    """Accepted: all are enabled."""
    if name not in {"all", *_flags(call)}:
        raise bad_request("unsupported")


def _deprecated(call: Call) -> list[dict[str, str]]:
    denied = {name for name, (phase, _) in DEPRECATED.items() if phase == _REMOVED}
    switches = call.broker.config.compatibility
    denied |= {"transient_nonexcl_queues"} if switches.transient_nonexcl_queues == "denied" else set()
    denied |= set() if switches.global_qos == "permitted" else {"global_qos"}
    denied |= set() if switches.queues.arguments == "3.13" else {"queue_master_locator"}
    phases = PHASES_4 if call.is_4 else {}
    return [
        {"name": name, "deprecation_phase": phases.get(name, phase),
         "state": "denied" if name in denied else "permitted", "provided_by": "rabbit", "desc": doc, "doc_url": ""}
        for name, (phase, doc) in DEPRECATED.items()
    ]  # fmt: skip


@ROUTES.list("deprecated-features")
def list_deprecated_features(call: Call) -> Answer:
    """Features that RabbitMQ deprecates."""
    return Listing(_deprecated(call), sort=("name",), is_paged=False)


@ROUTES.list("deprecated-features/used")
def list_used_deprecated_features(call: Call) -> Steps:
    """Those in use: transient queues that are not exclusive; the use of others is not recorded, as in RabbitMQ 4.3."""
    rows: list[dict[str, str]] = []
    for some in portions(
        [queue for vhost in call.broker.vhosts.values() for queue in vhost.queues.values()], STEP
    ):
        if any(not queue.durable and queue.exclusive_owner is None for queue in some):
            rows = [row for row in _deprecated(call) if row["name"] == "transient_nonexcl_queues"]
            break
        yield None
    return Listing(rows, sort=("name",), is_paged=False)


@ROUTES.list("extensions", needs=Right.MANAGEMENT)
@ROUTES.list(
    "federation-links",
    "federation-links/{vhost}",
    doc="Empty: there is no such plugin.",
    needs=Right.MONITORING,
    group="plugins",
)
def list_nothing(_call: Call) -> Answer:
    """Empty: there are no extensions."""
    return Listing([], is_paged=False)


def _cluster_name(call: Call) -> dict[str, str]:
    return {"name": call.broker.cluster_name}


@ROUTES.get("cluster-name", needs=Right.MANAGEMENT)
def get_cluster_name(call: Call) -> Answer:
    """Name that clients see."""
    return Item(_cluster_name(call))


@ROUTES.put("cluster-name", body=(required("name"),), state=_cluster_name)
def put_cluster_name(call: Call) -> None:
    """Set the name that clients see."""
    call.broker.check_shared()
    call.broker.directory.rename_cluster(call.body("name").text("name"))


@ROUTES.get("version", needs=Right.MANAGEMENT, kind="string")
def get_version(call: Call) -> Answer:
    """Version of RabbitMQ whose API this is."""
    return Item(call.broker.config.compatibility.version)


@ROUTES.get("config/effective", kind="text")
def get_settings(call: Call) -> Answer:
    """Effective configuration as text."""
    lines = "".join(f"{line}\n" for line in call.broker.effective_settings())
    return Content((lines.encode(),), "text/plain; charset=utf-8")


@ROUTES.list("auth/attempts/{node}", needs=Right.MONITORING, group="login")
def get_auth_attempts(call: Call) -> Answer:
    """Numbers of logins by protocol."""
    call.check_node_name()
    totals = call.broker.context.totals
    found = call.broker.logins.attempts(totals.auth_failed, totals.auth_succeeded)
    rows = [{"protocol": protocol, **_attempts(counts)} for protocol, counts in found.items()]
    return Listing(rows, sort=(), is_paged=False)


def _attempts(counts: LoginCounts) -> dict[str, int]:
    return {
        "auth_attempts": counts.failed + counts.succeeded,
        "auth_attempts_failed": counts.failed,
        "auth_attempts_succeeded": counts.succeeded,
    }


@ROUTES.list("auth/attempts/{node}/source", needs=Right.MONITORING, group="login")
def get_auth_attempts_by_source(call: Call) -> Answer:
    """Numbers of logins by address, user and protocol, the latest 1,000."""
    call.check_node_name()
    rows = [
        {"remote_address": address, "username": json_text(name), "protocol": protocol, **_attempts(counts)}
        for (address, name, protocol), counts in call.broker.logins.sources.rows()
    ]
    return Listing(rows, sort=(), is_paged=False)


@ROUTES.delete("auth/attempts/{node}", "auth/attempts/{node}/source", needs=Right.MONITORING, group="login")
def reset_auth_attempts(call: Call) -> None:
    """Count logins from now on."""
    call.check_node_name()
    totals = call.broker.context.totals
    call.broker.logins.reset(totals.auth_failed, totals.auth_succeeded)


@ROUTES.delete("reset", "reset/{node}")
def reset_statistics(call: Call) -> Steps:
    """Forget all samples, and the counts of closed channels and connections."""
    call.check_node_name()
    yield from call.broker.statistics.forgetting()
    return Done()


@ROUTES.post("rebalance/queues")
def change_nothing(call: Call) -> None:
    """Accepted: there is one node."""
    call.check_node_name()


@ROUTES.get("auth/hash_password/{password}", group="login")
def hash_of_password(call: Call, password: str) -> Answer:
    """Hash of a password."""
    return Item({"ok": hash_password(Password(password), call.broker.users.passwords.algorithm)})
