"""Operations that change something, and lists of things: the page has each, or there is a reason."""

import pytest

from leveret.broker.management.routes import ROUTES
from leveret.broker.page.assets import STATIC

PAGES = """
PUT users/{user}                                users        send("PUT", `users/
DELETE users/{user}                             users        send("DELETE", `users/
PUT user-limits/{user}/{limit}                  users        send("PUT", `user-limits/
PUT vhosts/{vhost}                              vhosts       send("PUT", `vhosts/
DELETE vhosts/{vhost}                           vhosts       send("DELETE", `vhosts/
PUT vhost-limits/{vhost}/{limit}                vhosts       send("PUT", `vhost-limits/
POST vhosts/{vhost}/deletion/protection         vhosts       /deletion/protection`
DELETE vhosts/{vhost}/deletion/protection       vhosts       /deletion/protection`
PUT topic-permissions/{vhost}/{user}            users        send("PUT", `topic-permissions/
DELETE topic-permissions/{vhost}/{user}/{exchange}      users        send("DELETE", `topic-permissions/
PUT permissions/{vhost}/{user}                  users        send("PUT", `permissions/
DELETE permissions/{vhost}/{user}               users        send("DELETE", `permissions/
PUT operator-policies/{vhost}/{policy}          policies     path: "operator-policies"
DELETE operator-policies/{vhost}/{policy}       policies     path: "operator-policies"
PUT policies/{vhost}/{policy}                   policies     send("PUT", `${kind.path}/
DELETE policies/{vhost}/{policy}                policies     send("DELETE", `${kind.path}/
POST leveret/explain/policy/{vhost}             policy_preview  leveret/explain/policy/
PUT parameters/{component}/{vhost}/{name}       shovels      parameters/shovel/
DELETE shovels/vhost/{vhost}/{name}             shovels      send("DELETE", `shovels/vhost/${path(vhost, name)}`)
DELETE shovels/vhost/{vhost}/{name}/restart     shovels      /restart`
PUT queues/{vhost}/{queue}                      queue_form   send("PUT", `queues/
DELETE queues/{vhost}/{queue}                   queue        send("DELETE", `queues/
DELETE queues/{vhost}/{queue}/contents          queue        /contents
POST leveret/queues/{vhost}/{queue}/held        transfer     held
PUT leveret/queues/{vhost}/{queue}/pause        queue        pause
PUT leveret/queues/{vhost}/{queue}/resume       queue        resume
PUT exchanges/{vhost}/{exchange}                exchanges    send("PUT", `exchanges/
DELETE exchanges/{vhost}/{exchange}             exchanges    send("DELETE", `exchanges/
POST bindings/{vhost}/e/{source}/e/{exchange}   bindings     send("POST", `bindings/
POST bindings/{vhost}/e/{source}/q/{queue}      bindings     send("POST", `bindings/
DELETE bindings/{vhost}/e/{source}/q/{queue}/{props}     bindings   send("DELETE", `bindings/
DELETE bindings/{vhost}/e/{source}/e/{exchange}/{props}  bindings   send("DELETE", `bindings/
POST exchanges/{vhost}/{exchange}/publish       publish      /publish`
POST leveret/explain/publish/{vhost}/{exchange} exchanges    leveret/explain/publish/
POST leveret/queues/{vhost}/{queue}/move        transfer     move
POST leveret/queues/{vhost}/{queue}/copy        transfer     copy
POST leveret/queues/{vhost}/{queue}/discard     transfer     discard
POST leveret/queues/{vhost}/{queue}/retry       transfer     retry
DELETE leveret/transfers/{transfer}             transfer     leveret/transfers/
DELETE connections/{connection}                 connections  send("DELETE", `connections/
POST leveret/definitions                        definitions  leveret/definitions
"""
"""An operation, the module of the page that has it, and what is in that."""
NOT_FOR_A_PAGE = {
    "of the host, by `leveret ctl`, not from a browser": (
        "leveret/backup leveret/memory-watermark leveret/disk-free-limit leveret/log-level leveret/rotate-logs leveret/stop "
        "leveret/reload-tls leveret/clear-auth-backend-cache leveret/authenticate leveret/close-connections "
        "leveret/cluster/transfer leveret/cluster/move leveret/cluster/members/{name} leveret/cluster/accept-log leveret/cluster/balance "
        "cluster-name"
    ),
    "does nothing here: there is one node, and features are always on": (
        "queues/{vhost}/{queue}/actions queues/quorum/{vhost}/{queue}/replicas/delete queues/quorum/replicas/on/{node}/shrink "
        "queues/quorum/{vhost}/{queue}/replicas/add queues/quorum/replicas/on/{node}/grow rebalance/queues "
        "vhosts/{vhost}/start/{node} feature-flags/{name}/enable"
    ),
    "the page does it in another way": (
        "users/bulk-delete connections/username/{user} queues/{vhost}/{queue}/get definitions definitions/{vhost} "
        "leveret/definitions/{vhost} all-configuration login logout leveret/oauth topic-permissions/{vhost}/{user} "
        "topic-permissions/{vhost}/{user}/{exchange}"
    ),
    "rare, and done by a command": (
        "global-parameters/{name} leveret/queues/{vhost}/{queue}/replay leveret/queues/{vhost}/{queue}/ids "
        "leveret/exchanges/{vhost}/{exchange}/ids auth/attempts/{node} auth/attempts/{node}/source reset reset/{node}"
    ),
    "a limit or parameter is set to -1, or ended where it is shown": (
        "user-limits/{user}/{limit} vhost-limits/{vhost}/{limit} parameters/{component}/{vhost}/{name}"
    ),
}
LISTS = """
bindings bindings
channels channels
connections connections
consumers consumers
deprecated-features about
exchanges exchanges
leveret/dead-letters dead_letters
leveret/settings queue_form
leveret/transfers messages
nodes about
operator-policies policies
parameters shovels
permissions users
policies policies
queues queue
shovels shovels
topic-permissions users
user-limits users
users users
vhost-limits vhosts
vhosts vhosts
"""
"""A list of things of the whole broker, and the module of the page that has them."""
NOT_LISTED = {
    "deprecated-features/used": "a check of operators, by a command",
    "extensions": "there are none",
    "feature-flags": "all are always enabled",
    "federation-links": "there is no federation",
    "global-parameters": "rare, and listed by a command",
    "leveret/ids": "on the page of each queue; those of exchanges by a command",
    "queues/detailed": "the list of queues has its columns",
    "users/without-permissions": "the matrix of permissions shows them",
}
ROWS = [line.split(maxsplit=3) for line in PAGES.strip().splitlines()]


@pytest.mark.parametrize(("method", "path", "module", "text"), ROWS, ids=lambda each: each[:40])
def test_the_page_has_it(method, path, module, text):
    """The module asks for it."""
    assert text in (STATIC / "pages" / f"{module}.js").read_text(encoding="utf-8"), (method, path)


def test_each_operation_has_a_page_or_a_reason():
    """A new one needs either."""
    there = {(method, route.path) for route in ROUTES for method in route.operations if method != "GET"}
    paths = {path for some in NOT_FOR_A_PAGE.values() for path in some.split()}
    shown = {(method, path) for method, path, _, _ in ROWS}

    assert set() == {(method, path) for method, path in there - shown if path not in paths}
    assert set() == shown - there
    assert set() == paths - {path for _, path in there}


@pytest.mark.parametrize(("path", "module"), [line.split() for line in LISTS.strip().splitlines()])
def test_the_page_has_the_things(path, module):
    """The module asks for the list, or for those of its virtual host."""
    text = (STATIC / "pages" / f"{module}.js").read_text(encoding="utf-8")

    assert any(f"{before}{path}" in text for before in '"`'), path


def test_each_list_of_things_has_a_page_or_a_reason():
    """A new one needs either."""
    lists = {
        each.path
        for each in ROUTES
        if "{" not in each.path and "GET" in each.operations and each.operations["GET"].kind == "array"
    }
    shown = {line.split()[0] for line in LISTS.strip().splitlines()}

    assert lists == shown | NOT_LISTED.keys()
    assert set() == shown & NOT_LISTED.keys()
