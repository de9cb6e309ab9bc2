"""Rights to call operations: every path, method, tag of a user, and vhost with or without permissions.

The expectation is computed from the table below, not from the routes. A row is a path, its methods, and what they need:

* `open`: no login;
* `management`: any of the four tags; `monitoring`, `administrator`: these;
* `vhost`: also permissions in the vhost, or to be an administrator;
* `visible`: as `vhost`, but monitoring users see all;
* `policymaker`: a policymaker with permissions in the vhost, or an administrator;
* `client`: permissions in the vhost, even for an administrator, because a client of the user would need them;
* `none`: refused for all.
"""

import re
from collections.abc import Iterator

import pytest
from doubles.fakes import Node
from services.api import Api

from leveret.broker.management.routes import ROUTES

TAGS = ("none", "management", "policymaker", "monitoring", "administrator")
VHOSTS = ("own", "other")
LEAST_CELLS = 900
TABLE = """
overview                                    GET management
cluster-name                                GET management, PUT administrator
nodes                                       GET monitoring
nodes/{node}                                GET monitoring
nodes/{node}/memory                         GET monitoring
nodes/{node}/memory/relative                GET monitoring
nodes/{node}/memory/ets                     GET monitoring
nodes/{node}/memory/ets/relative            GET monitoring
nodes/{node}/memory/ets/{filter}            GET monitoring
nodes/{node}/memory/ets/{filter}/relative   GET monitoring
extensions                                  GET management
version                                     GET management
openapi.json                                GET open
definitions                                 GET POST administrator
all-configuration                           GET POST administrator
definitions/{vhost}                         GET POST administrator
leveret/definitions                         POST administrator
leveret/cluster                             GET monitoring
leveret/cluster/balance                     POST administrator
leveret/cluster/transfer                    POST administrator
leveret/cluster/move                        POST administrator
leveret/cluster/members/{name}              DELETE administrator
leveret/cluster/accept-log                  POST administrator
leveret/definitions/{vhost}                 POST administrator
parameters                                  GET policymaker
parameters/{component}                      GET policymaker
parameters/{component}/{vhost}              GET policymaker
parameters/{component}/{vhost}/{name}       GET PUT DELETE policymaker
global-parameters                           GET policymaker
global-parameters/{name}                    GET PUT DELETE policymaker
policies                                    GET management
policies/{vhost}                            GET vhost
policies/{vhost}/{policy}                   GET PUT DELETE policymaker
operator-policies                           GET management
operator-policies/{vhost}                   GET vhost
operator-policies/{vhost}/{policy}          GET PUT DELETE administrator
vhost-limits                                GET management
vhost-limits/{vhost}                        GET visible
vhost-limits/{vhost}/{limit}                PUT DELETE administrator
user-limits                                 GET management
user-limits/{user}                          GET management
user-limits/{user}/{limit}                  PUT DELETE administrator
connections                                 GET management
connections/{connection}                    GET DELETE management
connections/{connection}/channels           GET management
connections/{connection}/sessions           GET management
connections/username/{user}                 GET DELETE management
vhosts/{vhost}/connections                  GET visible
channels                                    GET management
channels/{channel}                          GET management
vhosts/{vhost}/channels                     GET visible
consumers                                   GET management
consumers/{vhost}                           GET management
exchanges                                   GET management
exchanges/{vhost}                           GET vhost
exchanges/{vhost}/{exchange}                GET vhost, PUT client, DELETE vhost
exchanges/{vhost}/{exchange}/publish        POST vhost
exchanges/{vhost}/{exchange}/bindings/source        GET vhost
exchanges/{vhost}/{exchange}/bindings/destination   GET vhost
queues                                      GET management
queues/detailed                             GET management
queues/{vhost}                              GET vhost
queues/{vhost}/{queue}                      GET vhost, PUT client, DELETE vhost
queues/{vhost}/{queue}/bindings             GET vhost
queues/{vhost}/{queue}/contents             DELETE vhost
queues/{vhost}/{queue}/get                  POST vhost
queues/{vhost}/{queue}/actions              POST administrator
leveret/queues/{vhost}/{queue}/messages     GET client
leveret/explain/queue/{vhost}/{queue}       GET visible
leveret/queues/{vhost}/{queue}/held         POST client
leveret/ids                                 GET management
leveret/ids/{vhost}                         GET visible
leveret/queues/{vhost}/{queue}/ids          GET client, DELETE client
leveret/exchanges/{vhost}/{exchange}/ids    GET client, DELETE client
leveret/explain/publish/{vhost}/{exchange}  POST visible
leveret/explain/policy/{vhost}             POST policymaker
leveret/explain/message/{vhost}/{queue}/{number}        GET client
queues/quorum/{vhost}/{queue}/replicas/add          POST administrator
queues/quorum/{vhost}/{queue}/replicas/delete       DELETE administrator
queues/quorum/replicas/on/{node}/grow               POST administrator
queues/quorum/replicas/on/{node}/shrink             DELETE administrator
queues/quorum/{vhost}/{queue}/status                GET visible
leveret/queues/{vhost}/{queue}/move         POST client
leveret/queues/{vhost}/{queue}/copy         POST client
leveret/queues/{vhost}/{queue}/discard      POST client
leveret/queues/{vhost}/{queue}/retry        POST client
leveret/exchanges/{vhost}/{exchange}/tail   GET administrator
leveret/queues/{vhost}/{queue}/replay       POST client
leveret/queues/{vhost}/{queue}/pause        PUT client
leveret/queues/{vhost}/{queue}/resume       PUT client
leveret/transfers                           GET management
leveret/transfers/{transfer}                GET DELETE management
leveret/dead-letters                        GET management
leveret/dead-letters/{vhost}                GET vhost
bindings                                    GET management
bindings/{vhost}                            GET vhost
bindings/{vhost}/e/{source}/q/{queue} GET vhost, POST client
bindings/{vhost}/e/{source}/e/{exchange} GET vhost, POST client
bindings/{vhost}/e/{source}/q/{queue}/{props} GET vhost, DELETE vhost
bindings/{vhost}/e/{source}/e/{exchange}/{props} GET vhost, DELETE vhost
vhosts                                      GET management
vhosts/{vhost}                              GET PUT DELETE administrator
vhosts/{vhost}/deletion/protection          POST DELETE administrator
vhosts/{vhost}/start/{node}                 POST administrator
vhosts/{vhost}/permissions                  GET administrator
vhosts/{vhost}/topic-permissions            GET administrator
users                                       GET administrator
users/{user}                                GET PUT DELETE administrator
users/bulk-delete                           POST administrator
users/without-permissions                   GET administrator
users/{user}/permissions                    GET administrator
users/{user}/queues                         GET administrator
users/{user}/topic-permissions              GET administrator
permissions                                 GET administrator
permissions/{vhost}/{user}                  GET PUT DELETE administrator
topic-permissions                           GET administrator
topic-permissions/{vhost}/{user}            GET PUT DELETE administrator
topic-permissions/{vhost}/{user}/{exchange} GET PUT DELETE administrator
feature-flags                               GET administrator
feature-flags/{name}/enable                 PUT administrator
deprecated-features                         GET administrator
deprecated-features/used                    GET administrator
whoami                                      GET management
aliveness-test/{vhost}                      GET client
healthchecks/node                           GET management
healthchecks/node/{node}                    GET management
health/checks/alarms                        GET management
health/checks/local-alarms                  GET management
health/checks/certificate-expiration/{within}/{unit}    GET management
health/checks/port-listener/{port}          GET management
health/checks/protocol-listener/{protocol}  GET management
health/checks/virtual-hosts                 GET management
health/checks/node-is-mirror-sync-critical  GET management
health/checks/node-is-quorum-critical       GET management
health/checks/is-in-service                 GET management
health/checks/below-node-connection-limit   GET management
health/checks/ready-to-serve-clients        GET management
health/checks/metadata-store/initialized    GET management
health/checks/metadata-store/initialized/with-data      GET management
health/checks/replication                   GET management
health/checks/reached-target-cluster-size   GET management
health/checks/quorum-queues-without-elected-leaders/all-vhosts      GET management
health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}   GET visible
health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}    GET management
health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern} GET visible
reset                                       DELETE administrator
reset/{node}                                DELETE administrator
rebalance/queues                            POST administrator
auth                                        GET open
auth/attempts/{node}                        GET DELETE monitoring
auth/attempts/{node}/source                 GET DELETE monitoring
auth/hash_password/{password}               GET administrator
login                                       POST none
logout                                      POST open
leveret/oauth                               GET POST open
leveret/events                              GET management
config/effective                            GET administrator
leveret/backup                              GET POST DELETE none
leveret/resources                           GET monitoring
leveret/logs                                GET monitoring
leveret/reports                             GET monitoring
leveret/settings                            GET management
leveret/memory-watermark                    PUT administrator
leveret/disk-free-limit                     PUT administrator
leveret/log-level                           PUT administrator
leveret/rotate-logs                         POST administrator
leveret/reload-tls                          POST administrator
leveret/clear-auth-backend-cache            POST administrator
leveret/stop                                POST administrator
leveret/authenticate                        POST administrator
leveret/close-connections                   POST management
federation-links                            GET monitoring
federation-links/{vhost}                    GET monitoring
shovels                                     GET monitoring
shovels/{vhost}                             GET monitoring
shovels/vhost/{vhost}/{name}                GET monitoring, DELETE policymaker
shovels/vhost/{vhost}/{name}/restart        DELETE policymaker
"""


def needs() -> dict[tuple[str, str], str]:
    """Return what each path and method of the table needs."""
    found = {}
    for line in TABLE.strip().splitlines():
        path, _, rest = line.partition(" ")
        for part in rest.split(","):
            *methods, need = part.split()
            found |= {(path, method): need for method in methods}
    return found


NEEDS = needs()
OPERATIONS = [(route.path, method) for route in ROUTES for method in route.operations]


def is_permitted(need: str, tag: str, vhost: str) -> bool:
    """Return whether a user with a tag, and permissions in the vhost `own`, may do what needs that."""
    if need in {"open", "none"}:
        return need == "open"
    if tag == "none":
        return False
    inside = vhost == "own"
    return {
        "management": True,
        "monitoring": tag in {"monitoring", "administrator"},
        "administrator": tag == "administrator",
        "vhost": inside or tag == "administrator",
        "visible": inside or tag in {"monitoring", "administrator"},
        "policymaker": tag == "administrator" or (tag == "policymaker" and inside),
        "client": inside,
    }[need]


def cells() -> Iterator[tuple[str, str, str, str]]:
    for path, method in OPERATIONS:
        for vhost in VHOSTS:
            for tag in TAGS:
                yield path, method, tag, vhost


def test_operations_and_rows_are_the_same():
    """Whoever adds a route adds a row, and no route of a row is lost."""
    assert set(NEEDS) == set(OPERATIONS)


def test_the_matrix_is_large():
    """Every path, method, tag and vhost is a cell."""
    assert len(list(cells())) >= LEAST_CELLS


def filled(path: str, vhost: str) -> str:
    """Return a path with the vhost and, for other objects, names of none."""
    return re.sub(r"{\w+}", "nothing", path.replace("{vhost}", vhost))


@pytest.fixture
def logins() -> dict[str, Api]:
    """The API as used by users with each of the tags, who have permissions in the vhost `own` only."""
    node = Node()
    administration = node.administration
    for vhost in VHOSTS:
        administration.vhosts.put(None, vhost)
    for tag in TAGS:
        administration.users.put(None, tag, tags=() if tag == "none" else (tag,), password="x")
        administration.users.set_permissions(None, "own", tag, configure=".*", write=".*", read=".*")
    return {tag: Api(node, f"{tag}:x") for tag in TAGS}


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_who_may_call(path, method, logins):
    """A user who may not call an operation gets 401 whatever else is wrong, and one who may does not."""
    need = NEEDS[path, method]
    in_vhost = "{vhost}" in path
    asked = [(vhost, tag) for vhost in VHOSTS for tag in TAGS]
    found = {
        (vhost, tag): 401 != logins[tag].request(method, filled(path, vhost), {}).status
        for vhost, tag in asked
    }

    expected = {(vhost, tag): is_permitted(need, tag, vhost if in_vhost else "own") for vhost, tag in asked}
    assert expected == found


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_nobody_is_let_in_without_a_login(path, method, logins):
    """The answer asks for one; open paths do not."""
    stranger = Api(logins["none"].node, "")
    answer = stranger.request(method, filled(path, "own"), {})

    if path == "leveret/oauth":
        assert answer.status == 404, "there is no identity provider"
    elif NEEDS[path, method] == "open":
        assert answer.status in {200, 204}
    elif path != "login":
        assert (401, 'Basic realm="RabbitMQ Management"') == (
            answer.status,
            answer.headers.get("WWW-Authenticate"),
        )
