"""Settings of the node, logins, features, and lists of what is not here."""

from typing import Any
from urllib.parse import parse_qsl

from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.administration.access import Right, authorize
from leveret.broker.auth.passwords import Password, hash_password
from leveret.broker.http.call import Answer, Call, Content, Done, Item, Listing, text
from leveret.broker.http.dispatch import check_login
from leveret.broker.http.errors import bad_request, not_found
from leveret.broker.http.route import Key, Operation, Route

FEATURE_FLAGS = {
    "classic_mirrored_queue_version": "versions of classic mirrored queues",
    "classic_queue_type_delivery_support": "deliveries of classic queues by their type",
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
DEPRECATED = {
    "global_qos": "one prefetch count for all consumers of a channel",
    "transient_nonexcl_queues": "queues that are neither durable nor exclusive",
}


def list_feature_flags(_call: Call) -> Answer:
    """List the feature flags, all of them enabled."""
    rows = [
        {"name": name, "desc": doc, "doc_url": "", "state": "enabled", "stability": "stable", "provided_by": "rabbit"}
        for name, doc in FEATURE_FLAGS.items()
    ]  # fmt: skip
    return Listing(rows, sort=("name",), is_paged=False)


def enable_feature_flag(call: Call) -> Answer:
    """Do nothing: all feature flags are enabled."""
    if call.names["name"] not in {"all", *FEATURE_FLAGS}:
        raise bad_request("unsupported")
    return Done()


def list_deprecated_features(_call: Call) -> Answer:
    """List the features that RabbitMQ deprecates and that are here."""
    rows = [
        {"name": name, "deprecation_phase": "permitted_by_default", "provided_by": "rabbit", "desc": doc, "doc_url": ""}
        for name, doc in DEPRECATED.items()
    ]  # fmt: skip
    return Listing(rows, sort=("name",), is_paged=False)


def list_nothing(_call: Call) -> Answer:
    """Return an empty list: of something that is not here, but that dashboards ask for."""
    return Listing([], is_paged=False)


def get_cluster_name(call: Call) -> Answer:
    """Return the name that clients see."""
    return Item({"name": call.broker.cluster_name})


def put_cluster_name(call: Call) -> Answer:
    """Set the name that clients see."""
    call.broker.rename_cluster(text(call.body("name"), "name"))
    return Done()


def get_auth(_call: Call) -> Answer:
    """Return how the login page lets users log in: by name and password."""
    return Item({"oauth_enabled": False})


def get_version(_call: Call) -> Answer:
    """Return the version of RabbitMQ whose API this is."""
    return Item(COMPATIBLE_VERSION)


def get_settings(call: Call) -> Answer:
    """Return the effective configuration as text; passwords are masked."""
    lines = "".join(f"{line}\n" for line in call.broker.effective_settings())
    return Content((lines.encode(),), "text/plain; charset=utf-8")


def login(call: Call) -> Answer:
    """Check the name and password of a form."""
    form = dict(parse_qsl(call.content.decode("utf-8", "replace"), keep_blank_values=True))
    user = check_login(
        call.broker, form.get("username", ""), form.get("password", ""), call.peer or "127.0.0.1"
    )
    authorize(call.broker.users, user, Right.MANAGEMENT)
    return Item("ok")


def get_auth_attempts(call: Call) -> Answer:
    """Return the numbers of logins by protocol."""
    _check_node(call)
    totals, http = call.broker.context.totals, call.broker.http_logins
    return Listing(
        [_attempts("http", http.failed, http.succeeded),
         _attempts("amqp091", max(0, totals.auth_failed - http.failed), totals.auth_succeeded)],
        sort=(), is_paged=False,
    )  # fmt: skip


def _attempts(protocol: str, failed: int, succeeded: int) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "auth_attempts": failed + succeeded,
        "auth_attempts_failed": failed,
        "auth_attempts_succeeded": succeeded,
    }


def get_auth_attempts_by_source(call: Call) -> Answer:
    """Return an empty list: logins are not counted by address, as in RabbitMQ by default."""
    _check_node(call)
    return list_nothing(call)


def change_nothing(call: Call) -> Answer:
    """Accept the request; there is nothing to do."""
    _check_node(call)
    return Done()


def hash_of_password(call: Call) -> Answer:
    """Return a hash of a password, with a new salt."""
    return Item({"ok": hash_password(Password(call.names["password"]))})


def _check_node(call: Call) -> None:
    node = call.broker.node_name
    if call.names.get("node", node) != node:
        raise not_found()


_ADMINISTRATOR, _MONITORING = Right.ADMINISTRATOR, Right.MONITORING
_ATTEMPTS = Operation(get_auth_attempts, "Numbers of logins by protocol.", _MONITORING)
_RESET_ATTEMPTS = Operation(
    change_nothing, "Accepted; the numbers of logins are kept.", _MONITORING, statuses=(204,)
)
_RESET = Operation(change_nothing, "Accepted; statistics are kept.", _ADMINISTRATOR, statuses=(204,))
_NOT_HERE = Operation(list_nothing, "Empty: there is no such plugin.", _MONITORING)
ROUTES = (
    Route("version", "node", {"GET": Operation(get_version, "Version of RabbitMQ whose API this is.")}),
    Route(
        "cluster-name",
        "node",
        {
            "GET": Operation(get_cluster_name, "Name that clients see."),
            "PUT": Operation(
                put_cluster_name,
                "Set the name that clients see.",
                _ADMINISTRATOR,
                body=(Key("name", is_required=True),),
                statuses=(204,),
            ),
        },
    ),
    Route("extensions", "node", {"GET": Operation(list_nothing, "Empty: there are no extensions.")}),
    Route(
        "config/effective",
        "node",
        {"GET": Operation(get_settings, "Effective configuration as text.", _ADMINISTRATOR)},
    ),
    Route("feature-flags", "node", {"GET": Operation(list_feature_flags, "Feature flags.", _ADMINISTRATOR)}),
    Route(
        "feature-flags/{name}/enable",
        "node",
        {
            "PUT": Operation(
                enable_feature_flag, "Accepted: all are enabled.", _ADMINISTRATOR, statuses=(204,)
            )
        },
    ),
    Route(
        "deprecated-features",
        "node",
        {"GET": Operation(list_deprecated_features, "Features that RabbitMQ deprecates.", _ADMINISTRATOR)},
    ),
    Route(
        "deprecated-features/used",
        "node",
        {"GET": Operation(list_nothing, "Empty: their use is not recorded.", _ADMINISTRATOR)},
    ),
    Route("auth", "login", {"GET": Operation(get_auth, "Ways to log in.", None)}),
    Route(
        "login",
        "login",
        {
            "POST": Operation(
                login,
                "Check the name and password of a form.",
                None,
                body=(Key("username", is_required=True), Key("password", is_required=True)),
            )
        },
    ),
    Route("auth/attempts/{node}", "login", {"GET": _ATTEMPTS, "DELETE": _RESET_ATTEMPTS}),
    Route(
        "auth/attempts/{node}/source",
        "login",
        {
            "GET": Operation(get_auth_attempts_by_source, "Empty: not counted by address.", _MONITORING),
            "DELETE": _RESET_ATTEMPTS,
        },
    ),
    Route(
        "auth/hash_password/{password}",
        "login",
        {"GET": Operation(hash_of_password, "Hash of a password.", _ADMINISTRATOR)},
    ),
    Route("reset", "node", {"DELETE": _RESET}),
    Route("reset/{node}", "node", {"DELETE": _RESET}),
    Route(
        "rebalance/queues",
        "node",
        {"POST": Operation(change_nothing, "Accepted: there is one node.", _ADMINISTRATOR, statuses=(204,))},
    ),
    *(
        Route(path, "plugins", {"GET": _NOT_HERE})
        for path in ("federation-links", "federation-links/{vhost}", "shovels", "shovels/{vhost}")
    ),
)
