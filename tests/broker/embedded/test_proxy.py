"""The synchronous API, which is made from the asynchronous one."""

import inspect
import traceback
from pathlib import Path

import pytest

import leveret
from leveret.broker.embedded import synchronous

CLASSES = [
    each for each in vars(synchronous).values() if getattr(each, "__module__", "") == synchronous.__name__
]


def lines_of(caught: pytest.ExceptionInfo[BaseException]) -> list[tuple[str, str]]:
    """Return file and function of each line of a traceback after the first, which is the test's."""
    return [
        (Path(each.filename).name, each.name) for each in traceback.extract_tb(caught.value.__traceback__)[1:]
    ]


@pytest.mark.parametrize("cls", CLASSES)
def test_everything_is_documented(cls):
    """Each class, method and property has a docstring, with nothing of coroutines, and a name of its class."""
    assert {"ThreadClock", "Tail", "QueueView", "VHost", "Broker"} == {each.__name__ for each in CLASSES}
    for name, member in vars(cls).items():
        if not name.startswith("_"):
            assert inspect.getdoc(member), name
            assert "`async" not in member.__doc__, name
            function = member.fget if isinstance(member, property) else member
            assert f"{cls.__name__}.{name}" == function.__qualname__
            assert not inspect.iscoroutinefunction(function)
    assert "Args:" in leveret.Broker.__doc__


def test_signatures_are_those_of_the_coroutines():
    """Parameters, defaults and results are those of the coroutine; views are the synchronous ones."""
    there, here = (inspect.signature(cls.publish) for cls in (leveret.AsyncVHost, leveret.VHost))
    assert there == here
    assert leveret.QueueView is inspect.signature(leveret.Broker.queue).return_annotation
    assert {"data_dir", "config", "port", "record", "management"} == inspect.signature(
        leveret.Broker
    ).parameters.keys()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("purge", lambda broker: broker.purge("none")),
        ("depth", lambda broker: broker.queue("none").depth),
        ("__enter__", lambda broker: broker.tail("none").__enter__()),
        ("assert_published", lambda broker: broker.assert_published("none")),
    ],
)
def test_a_refusal_is_raised_by_the_method(name, call):
    """The traceback of an error of the API has one line after that of the caller, which names the method."""
    with leveret.Broker() as broker, pytest.raises(leveret.LeveretError) as caught:
        call(broker)

    assert ("proxy.py", name) == lines_of(caught)[-1]
    assert 2 == len(lines_of(caught))  # the first is the lambda's
    assert caught.value.__suppress_context__


def test_an_internal_error_keeps_its_traceback():
    """An error that nobody expects shows where it was raised."""
    with leveret.Broker() as broker, pytest.raises(TypeError, match="bytes-like") as caught:
        broker.publish("", "orders", 3)

    assert ("vhost.py", "publish") == lines_of(caught)[-1]


def test_wrong_arguments_name_the_method():
    """Wrong arguments are those of the method that was called, not those of the coroutine."""
    with pytest.raises(TypeError, match=r"^Broker.__init__\(\) got an unexpected keyword argument 'ports'"):
        leveret.Broker(ports=1)
    with leveret.Broker() as broker, pytest.raises(TypeError, match=r"^VHost.purge\(\) missing 1 required"):
        broker.purge()
