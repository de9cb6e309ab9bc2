"""Reasons for different answers: a pattern of the line of the request, and the reason."""

_OUR_PATTERNS = "patterns are compiled by another engine (RE2), whose texts are its own"
_NOT_THEIR_CRASH = "RabbitMQ fails with 500, or stores what has the wrong type; here it is 400"
_LATER = "RabbitMQ 3.13 has this, and 3.10 has not"
_LOGIN = "RabbitMQ 3.13: browsers must not ask for a password, and the text is another"
_IMPORT = "an import names the entry that is wrong, and imports nothing then"
_NO_PLUGIN = "dashboards poll this: the list is empty"
_ONE_NODE = "there are neither clusters nor a protocol between nodes"

EXPLAINED: dict[str, str] = {
    r"unknown: |nobody: POST login": _LOGIN,
    r'guest: PUT vhosts/made {"(description|tags)": 5}': _NOT_THEIR_CRASH,
    r"guest: PUT (topic-)?permissions/.*[(]": _OUR_PATTERNS,
    r'guest: PUT permissions/.*"configure": 1': _NOT_THEIR_CRASH,
    r'guest: PUT users/made {"tags": (5|"management", "password": 5)': _NOT_THEIR_CRASH,
    r"guest: PUT users/made .*hashing_algorithm": "an unknown algorithm is refused, not replaced",
    r'guest: POST users/bulk-delete {"users": 5}': _NOT_THEIR_CRASH,
    r'guest: PUT policies/own/p {"pattern": "[(]': _OUR_PATTERNS,
    r'guest: PUT policies/own/p .*("definition": (5|\[\])|"apply-to": 5)': _NOT_THEIR_CRASH,
    r'guest: PUT policies/own/p .*"apply-to": "none"': _LATER,
    r"policymaker: PUT parameters/vhost-limits": "limits and operator policies are for administrators, by any path",
    r"guest: GET global-parameters": "RabbitMQ has one of its own for the identity of the cluster",
    r".*: GET vhost-limits": "a negative limit is none, and not kept",
    r"guest: DELETE (vhost|user)-limits/(none|noone)/": _NOT_THEIR_CRASH,
    r"guest: GET (definitions|all-configuration)": "RabbitMQ keeps empty limits of a vhost, and its own global parameter",
    r"guest: POST definitions .*(vhosts|users|queues|parameters|permissions|policies|bindings)": _IMPORT,
    r"guest: (GET|DELETE) queues/own/": "statistics of queues",
    r"guest: GET health/checks/port-listener/": "the other ports are not the same",
    r"guest: GET health/checks/protocol-listener/": _ONE_NODE,
    r"guest: GET feature-flags": _LATER,
    r"guest: GET deprecated-features": _LATER,
    r"guest: GET extensions": "the page of the API needs none",
    r'guest: PUT cluster-name {"name": 5}': _NOT_THEIR_CRASH,
    r".*: GET auth$": _LATER,
    r".*: GET (auth/hash_password|version|config/effective)": _LATER,
    r"guest: GET (federation-links|shovels)": _NO_PLUGIN,
    r"guest: (POST|DELETE) queues/quorum/": _ONE_NODE,
    r"guest: GET $": "there is no page of the API here",
}
