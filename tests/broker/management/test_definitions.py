"""Definitions in the API."""

import json

import pytest
from doubles.fakes import Node
from services.api import Api

POLICY = {"vhost": "/", "name": "p", "pattern": "^q", "definition": {"max-length": 5}, "priority": 0}
DOCUMENT = {
    "vhosts": [{"name": "v"}],
    "users": [{"name": "ann", "tags": "management", "password_hash": ""}],
    "permissions": [{"user": "ann", "vhost": "v", "configure": "", "write": "", "read": ".*"}],
    "policies": [{**POLICY, "apply-to": "all"}],
    "exchanges": [{"vhost": "v", "name": "x", "type": "fanout", "durable": True, "auto_delete": False}],
    "queues": [{"vhost": "v", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
    "bindings": [
        {"vhost": "v", "source": "x", "destination": "q", "destination_type": "queue", "routing_key": "k"}
    ],
}


def test_an_export_can_be_imported_elsewhere(api):
    """Everything is in it, and an import of it makes the same."""
    assert 204 == api.post("definitions", DOCUMENT).status
    exported = api.get("definitions")
    other = Api(Node())
    assert 204 == other.post("definitions", exported).status
    for section in DOCUMENT:
        assert exported[section], section
    assert exported == other.get("definitions") == other.get("all-configuration")
    assert {"rabbit_version", "rabbitmq_version", "product_name", "product_version"} <= exported.keys()


def test_the_definitions_of_a_vhost_are_imported_into_another(api):
    """They do not name the vhost of exchanges, queues and bindings; users in a file are ignored."""
    api.post("definitions", DOCUMENT)
    api.put("vhosts/w")
    exported = api.get("definitions/v")

    assert {"rabbit_version", "parameters", "policies", "exchanges", "queues", "bindings"} == exported.keys()
    assert "vhost" not in exported["queues"][0]
    assert 204 == api.post("definitions/w", exported | {"users": [{"name": "bob"}]}).status
    copy = api.get("definitions/w")
    for section in ("exchanges", "queues", "bindings"):
        assert exported[section] == copy[section], section
    assert 404 == api.request("GET", "users/bob").status


@pytest.mark.parametrize("path", ["definitions", "definitions/v"])
def test_a_client_that_has_the_definitions_gets_no_body(api, path):
    """The entity tag changes with the definitions, and only then; with it the answer is 304, as in RabbitMQ 4.3."""
    api.post("definitions", DOCUMENT)
    api.put("permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    first = api.request("GET", path)
    known = {"if-none-match": f'"other", {first.headers["etag"]}'}

    assert (304, b"") == api.request("GET", path, **known)[::2]
    assert 304 == api.request("GET", path, **{"if-none-match": "*"}).status
    assert first.body == api.request("GET", path, **{"if-none-match": '"other"'}).body
    assert 201 == api.put("exchanges/v/later", {"type": "fanout"})
    later = api.request("GET", path, **known)
    assert 200 == later.status
    assert first.headers["etag"] != later.headers["etag"]
    assert 204 == api.delete("exchanges/v/later")
    assert first.headers["etag"] == api.request("GET", path).headers["etag"]


def test_a_download_has_a_name(api):
    """Browsers save the answer in a file; what would not be its name is refused."""
    answer = api.request("GET", "definitions?download=mine.json")

    assert "attachment; filename=mine.json" == answer.headers["content-disposition"]
    assert 400 == api.request("GET", "definitions?download=a%22b").status


@pytest.mark.parametrize(
    ("redirect", "status", "location"),
    [
        (None, 204, None),
        ("/#/done", 303, "/#/done"),
        ("../#/done", 303, "../#/done"),
        ("https://example.com/", 204, None),
        ("//example.com/", 204, None),
        ("/\\example.com", 204, None),
        ("javascript:alert(1)", 204, None),
    ],
)
def test_a_form_is_imported(api, redirect, status, location):
    """The file is the field `file`, and a browser can be sent back to a place of the same site."""
    parts = {"file": json.dumps(DOCUMENT)} | ({} if redirect is None else {"redirect": redirect})
    body = "".join(
        f'--BOUND\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    )
    headers = {"content-type": 'multipart/form-data; boundary="BOUND"'}
    answer = api.request("POST", "definitions", f"{body}--BOUND--\r\n".encode(), **headers)

    assert (status, location) == (answer.status, answer.headers.get("location"))
    assert ["q"] == [queue["name"] for queue in api.get("definitions/v")["queues"]]


def test_a_form_without_a_file_is_refused(api):
    """And so is one without a boundary."""
    for content_type in ("multipart/form-data; boundary=B", "multipart/form-data"):
        assert 400 == api.request("POST", "definitions", b"--B--", **{"content-type": content_type}).status


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b"null", b'{"users": [{"name": "\xff"}]}'])
def test_what_is_no_object_is_refused(api, body):
    """The reason is RabbitMQ's."""
    answer = api.request("POST", "definitions", body)

    assert (400, "failed_to_parse_json") == (answer.status, answer.body["reason"])


def test_nothing_is_imported_from_nothing(api):
    """An empty body, an empty object and unknown keys are accepted."""
    for body in (b"", b"{}", b'{"unknown": 5}', b'\xef\xbb\xbf{"users": []}'):
        assert 204 == api.request("POST", "definitions", body).status, body


def test_definitions_of_a_vhost_that_does_not_exist(api):
    """RabbitMQ answers 400 to an export and 404 to an import."""
    exported, imported = api.request("GET", "definitions/none"), api.post("definitions/none", {})

    assert (400, {"error": "bad_request", "reason": "vhost_not_found"}) == (exported.status, exported.body)
    assert (404, {"error": "not_found", "reason": "vhost_not_found"}) == (imported.status, imported.body)


def test_a_dry_run_answers_what_would_be_done(api):
    """Numbers, changes and problems are in the answer to our own path, and nothing is imported."""
    added = api.post("leveret/definitions?dry_run=true", DOCUMENT)
    wrong = api.post("leveret/definitions?dry_run=true", DOCUMENT | {"users": [{"name": "ann"}]})

    assert (200, 200) == (added.status, wrong.status)
    assert (True, True, 0, 0) == tuple(
        added.body[key] for key in ("dry_run", "valid", "changes_left_off", "problems_left_off")
    )
    assert {
        "kind": "queues", "vhost": "v", "added": 1, "changed": 0, "unchanged": 0, "kept": 0, "refused": 0, "unchecked": 0,
        "skipped": 0,
    } in added.body["counts"]  # fmt: skip
    assert {
        "action": "added", "kind": "queues", "vhost": "v", "entry": "queues[0] (name 'q', vhost 'v')", "differences": [],
    } in added.body["changes"]  # fmt: skip
    assert not wrong.body["valid"]
    assert ["users[0] (name 'ann'): Object missing required field `tags`"] == wrong.body["problems"]
    assert ["/"] == [vhost["name"] for vhost in api.get("vhosts")]


def test_an_import_answers_what_it_did(api, caplog):
    """Our own path answers it, the log says it, and a faulty file is refused as by RabbitMQ's path."""
    caplog.set_level("INFO")
    done = api.post("leveret/definitions", DOCUMENT)
    changed = api.post(
        "leveret/definitions", {"policies": [{**POLICY, "apply-to": "all", "definition": {"max-length": 6}}]}
    )
    wrong = api.post("leveret/definitions", {"users": [{"name": "ann"}, {"name": "bob"}]})
    (change,) = changed.body["changes"]

    assert "vhosts: 1 added; users: 1 added" in done.body["summary"]
    assert [{"key": "definition.max-length", "before": 5, "after": 6}] == change["differences"]
    assert 400 == wrong.status
    assert wrong.body["reason"].startswith(
        "2 entries cannot be imported, so nothing was:\nusers[0] (name 'ann')"
    )
    assert "definitions: imported by user 'guest': policies: 1 changed" in caplog.text


def test_what_cannot_exist_here_is_left_out_on_request(api):
    """`on_unsupported=skip` imports the rest, on RabbitMQ's path, too, and our own lists what is left out."""
    far = {"name": "far", "vhost": "/", "type": "x-federation-upstream"}
    document = {"queues": [{"name": "q", "vhost": "/"}], "exchanges": [far]}
    refused = api.post("definitions", document)
    told = api.post("leveret/definitions?dry_run=true&on_unsupported=skip", document)

    assert (400, True) == (refused.status, "definitions.on_unsupported = skip" in refused.body["reason"])
    assert [
        "exchanges[0] (name 'far', vhost '/'): unknown exchange type 'x-federation-upstream'"
    ] == told.body["skipped"]
    assert 0 == told.body["skipped_left_off"]
    assert 204 == api.post("definitions?on_unsupported=skip", document).status
    assert ["q"] == [queue["name"] for queue in api.get("queues")]
    assert 400 == api.post("definitions?on_unsupported=perhaps", document).status


def test_what_our_own_path_refuses(api):
    """A vhost that does not exist, what is no JSON object, and what is neither true nor false."""
    assert 404 == api.post("leveret/definitions/none", {}).status
    assert 400 == api.request("POST", "leveret/definitions", b"[").status
    assert 400 == api.post("leveret/definitions?dry_run=perhaps", {}).status
    assert "nothing" == api.request("POST", "leveret/definitions", b"").body["summary"]


def test_a_vhost_is_compared_with_an_export_of_another(api):
    """A dry run for one vhost takes everything for it."""
    api.post("definitions", DOCUMENT)
    exported = api.get("definitions/v")
    (same, other) = (
        api.post(f"leveret/definitions/{vhost}?dry_run=true", exported).body["summary"]
        for vhost in ("v", "%2F")
    )

    assert "exchanges: 1 unchanged; queues: 1 unchanged; bindings: 1 unchanged" == same
    assert "exchanges: 1 added; queues: 1 added; bindings: 1 added" == other
