"""Requests whose answers are not counted as equal, each with the reason: patterns of whole lines of requests.

A line is the login, the method, the path and the body, as `run.shown` writes it.
"""

_AFTER = "a route of RabbitMQ 3.13"
_PLUGIN = "a route of a plug-in that is not enabled there; dashboards poll it, so here the list is empty"

NO_ROUTE: dict[str, str] = {
    r".*: GET deprecated-features(/used)?": _AFTER,
    r".*: GET auth/hash_password/secret": _AFTER,
    r".*: GET version": _AFTER,
    r".*: GET config/effective": _AFTER,
    r".*: (POST|DELETE|GET) queues/quorum/.*": _AFTER,
    r".*: GET (federation-links|shovels)(/own)?": _PLUGIN,
    r".*: GET (stream/(connections|publishers|consumers)|tracing|traces|trace-files|top/NODE)": _PLUGIN,
    r".*: GET unknown": "a route of neither",
}
"""Routes that RabbitMQ 3.10 does not know."""

_LOGIN = "3.13 answers a wrong password without WWW-Authenticate, so that browsers do not ask for one"

CHANGED: dict[str, str] = {
    r"unknown: (PUT vhosts/never|GET whoami)": _LOGIN,
    r"nobody: POST login username=guest(&password=wrong)?": _LOGIN,
    r'guest: PUT policies/own/p .*"apply-to": "none".*': "the text of 3.13 names the kinds that 3.10 does not know",
    r"(guest|nobody): GET auth": "3.13 has other keys for OAuth",
    r"guest: GET feature-flags": "3.13 has more of them",
}
"""Requests that RabbitMQ 3.13 answers otherwise than 3.10, and this broker as 3.13."""

_IMPORT = "the reason of a refused import names the entry that is wrong"

DIFFERENT: dict[str, str] = {
    r'guest: PUT vhosts/made {"description": 5}': "RabbitMQ keeps a number as the description; here it is refused",
    r'guest: PUT users/made .*"hashing_algorithm": "none"}': "RabbitMQ replaces an algorithm that it does not know",
    r"policymaker: PUT parameters/vhost-limits/own/limits .*": "limits are for administrators, by any path",
    r'guest: POST definitions {"users": .*': _IMPORT,
    r'guest: POST definitions {"queues": .*"vhost": "none".*': _IMPORT,
    r'guest: POST definitions {"queues": .*"x-expires": "5".*': _IMPORT,
    r'guest: POST definitions {"parameters": .*': _IMPORT,
    r'guest: POST definitions {"permissions": .*': _IMPORT,
    r'guest: POST definitions {"policies": .*': _IMPORT,
    r'guest: POST definitions {"bindings": .*': "RabbitMQ drops a binding of a missing exchange without a word",
    r"guest: GET health/checks/protocol-listener/clustering": "there is no protocol between nodes here",
    r"guest: GET extensions": "there are no scripts for RabbitMQ's page here",
    r"guest: GET": "there is no page of the API at this path",
    r"guest: GET queues/own/none/bindings": "RabbitMQ lists the default binding of a queue that does not exist",
}
"""Requests that are answered otherwise here."""
