"""Sequence diagrams are drawn from the few words that the pages use."""

import importlib.util
import xml.etree.ElementTree as ET

import pytest
from processes.running import ROOT

spec = importlib.util.spec_from_file_location("sequence", ROOT / "docs" / "sequence.py")
sequence = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sequence)

WORDS = """
    sequenceDiagram
    participant P as publisher
    participant Q as queue & memory
    participant C as consumer
    P->>Q: publish
    Q->>C: deliver
    C--xQ: connection lost
    Note over P,C: it comes again
    Note over Q: alone
    Q-->>P: nack
"""


def drawn():
    """The picture of these words."""
    return ET.fromstring(sequence.draw(sequence.parse(WORDS.splitlines())))


def test_words_are_read_in_order():
    """Participants have their places from the left, and events stand as they were written."""
    diagram = sequence.parse(WORDS.splitlines())

    assert ["publisher", "queue & memory", "consumer"] == diagram.participants
    assert [
        sequence.Arrow(0, 1, "->>", "publish"),
        sequence.Arrow(1, 2, "->>", "deliver"),
        sequence.Arrow(2, 1, "--x", "connection lost"),
        sequence.Note(0, 2, "it comes again"),
        sequence.Note(1, 1, "alone"),
        sequence.Arrow(1, 0, "-->>", "nack"),
    ] == diagram.events


@pytest.mark.parametrize(
    "line", ["flowchart TD", "P->Q: half an arrow", "X->>P: from nobody", "P->>X: to nobody"]
)
def test_what_is_not_understood_is_an_error(line):
    """A line of another kind, or about a party that does not take part, is named."""
    with pytest.raises(ValueError, match=line):
        sequence.parse(["participant P as publisher", line])


def test_all_texts_are_in_the_picture():
    """The picture is well-formed, and has the names of all participants and what goes between them, once."""
    texts = [element.text for element in drawn() if element.tag == "text"]

    assert sorted(
        [
            "publisher",
            "queue & memory",
            "consumer",
            "publish",
            "deliver",
            "connection lost",
            "it comes again",
            "alone",
            "nack",
        ]
    ) == sorted(texts)


def test_what_answers_is_dashed():
    """Answers and what gets lost have dashed lines."""
    assert 2 == sum(element.get("class") == "dashed" for element in drawn())


def test_the_picture_is_described_in_words():
    """The picture has a description in words: each message with its sender and receiver."""
    assert (
        "publisher to queue & memory: publish; queue & memory to consumer: deliver; "
        "consumer to queue & memory: connection lost; it comes again; alone; queue & memory to publisher: nack"
    ) == drawn()[0].text


def test_texts_have_room():
    """Participants stand so far apart that neither their names nor what goes between two neighbours overlap."""
    long = "a text that is much longer than the names of those between whom it goes"
    diagram = sequence.parse(["participant A as a", "participant B as b", f"A->>B: {long}"])
    left, right = sequence.columns(diagram)

    assert len(long) * sequence.CHARACTER < right - left
