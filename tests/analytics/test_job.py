import pytest

from leveret.analytics.job import number_of


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ("0 queues", (0, "queue")),
        ("1 queue", (1, "queue")),
        ("1,200 queues", (1200, "queue")),
        ("1 queue is hot", (1, "queue is hot", "queues are hot")),
        ("0 addresses", (0, "address", "addresses")),
    ],
)
def test_words_go_with_their_number(expected, words):
    """One is singular, any other number is not, and its thousands are apart."""
    assert expected == number_of(*words)
