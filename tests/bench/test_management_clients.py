"""Clients of the management API: what is read from their output, and when two brokers count as equal."""

import json

import pytest

from bench.management_clients import __main__, amqpstorm, exporter, java, keda, suites

PAGE = """# HELP rabbitmq_queue_messages Sum
# TYPE rabbitmq_queue_messages gauge
rabbitmq_queue_messages{cluster="c",policy="",queue="a\\"b",self="1",vhost="v"} 3
rabbitmq_up{cluster="c",node="n"} 1
go_threads 7
"""
REPORT = """<testsuites><testsuite>
<testcase name="[BeforeSuite]" status="passed"/>
<testcase name="[It] lists queues" status="passed"/>
<testcase name="[It] lists queues" status="failed"/>
</testsuite></testsuites>"""
JUNIT = """<testsuites><testsuite>
<testcase classname="amqpstorm.tests.test_queue.QueueTests" name="test_get"/>
<testcase classname="amqpstorm.tests.test_queue.QueueTests" name="test_put"><failure message="m"/></testcase>
<testcase classname="amqpstorm.tests.test_user.UserTests" name="test_get"><skipped message="m"/></testcase>
</testsuite></testsuites>"""
RUST = """
running 3 tests
test queues_tests::test_list ... ok
test streams_tests::test_declare ... warning: printed by it
FAILED
test help_tests::show_help ... ignored
test queues_tests::test_delete ... FAILED
"""


def test_metrics_are_compared_without_what_names_a_broker():
    """Names and labels must be the same, and values unless they are a machine's or in flow."""
    found = exporter.metrics(PAGE)
    key = 'rabbitmq_queue_messages{policy="",queue="a\\"b",vhost="v"}'
    assert {key: 3, "rabbitmq_up{}": 1} == found
    assert [] == exporter.differences(found, found)
    other = {key: 4.0, "rabbitmq_node_mem_used{}": 1.0}
    assert [
        "only RabbitMQ: rabbitmq_node_mem_used{}",
        "only Leveret: rabbitmq_up{}",
        f"{key}: 3, RabbitMQ 4",
    ] == exporter.differences(found, other)
    flows = 'rabbitmq_queue_messages{queue="rates"}'
    assert [] == exporter.differences(
        {flows: 1.0, "rabbitmq_fd_used{}": 1.0}, {flows: 2.0, "rabbitmq_fd_used{}": 2.0}
    )


def test_keda_decodes_as_go_does():
    """A number with a fraction is no integer, a list no object; rates may differ, counts not."""
    queue = {"messages": 3, "messages_ready": 1, "message_stats": {"publish_details": {"rate": 2.5}}}
    assert (3, 1, 2.5, 0.0) == keda.decoded(queue)
    for wrong in ({"messages": 3.0}, {"message_stats": []}):
        with pytest.raises(ValueError, match="is "):
            keda.decoded(queue | wrong)
    assert ["b: 1, RabbitMQ 2"] == keda.differences({"a": [18.0], "b": 1}, {"a": [20.0], "b": 2})
    assert "a%2Fb+c~" == keda.escaped("a/b c~")


def test_what_the_java_client_returns_is_compared():
    """Lists in any order, fields of the machine by their types; a method that throws is told."""
    ours = {
        "getQueue": {"messages": 1, "memory": 5},
        "getNames": [{"name": "b"}, {"name": "a"}],
        "getUser": "threw x",
    }
    theirs = {
        "getQueue": {"messages": 2, "memory": 6},
        "getNames": [{"name": "a"}, {"name": "b"}],
        "getUser": "threw x",
    }
    assert ["getUser: threw x", "getQueue .messages: 1, RabbitMQ 2"] == java.differences(ours, theirs)
    other = {"getQueue": {"messages": 1, "memory": "5"}, "getNames": [], "getUser": "threw x"}
    assert [
        "getUser: threw x",
        "getQueue .memory: 5, RabbitMQ 5",
        "getNames : 2 entries, RabbitMQ 0 entries",
    ] == java.differences(ours, other)


def test_results_of_suites_are_read(tmp_path):
    """Specs of one name are numbered; only tests that RabbitMQ alone passes count as differences."""
    (tmp_path / "junit").write_text(JUNIT)
    assert {
        "QueueTests.test_get": "passed",
        "QueueTests.test_put": "failed",
        "UserTests.test_get": "skipped",
    } == amqpstorm.results(tmp_path / "junit")
    (tmp_path / "report").write_text(REPORT)
    assert {"lists queues": "passed", "lists queues (2)": "failed"} == suites.rabbit_hole_results(
        tmp_path / "report"
    )
    rust = suites.rabbitmqadmin_results(RUST)
    assert ["passed", "skipped", "failed"] == [rust[name] for name in sorted(rust, key=list(rust).index)]
    theirs = {"queues_tests::test_delete": "passed", "help_tests::show_help": "passed", "x": "failed"}
    assert ["help_tests::show_help", "queues_tests::test_delete"] == suites.differences(rust, theirs)


def test_the_program_of_integration_tests_is_found():
    """It is that of the target of this kind, not the program that is tested, whichever was built first."""
    tested, tests = (
        json.dumps({"target": {"kind": [kind], "test": True}, "executable": f"/{kind}"})
        for kind in ("bin", "test")
    )
    done = json.dumps({"reason": "build-finished", "success": True})

    for lines in ((tested, tests, done), (tests, tested, done)):
        assert "/test" == suites.program_of_tests("\n".join(lines))


def test_a_difference_has_the_reason_of_its_pattern():
    """Others have none, and fail the run."""
    assert "because" == __main__.reason("only RabbitMQ: a", {"only .*: a": "because"})
    assert "" == __main__.reason("b", {"a": "because"})
