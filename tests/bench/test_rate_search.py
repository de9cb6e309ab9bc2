import pytest

from bench.rate_search import highest


@pytest.mark.parametrize("true", [500.0, 777.0, 12_345.0, 99_999.0])
def test_the_highest_rate_that_holds_is_found(true):
    """The result holds, and a rate that is 5 % higher does not."""
    found = highest(lambda rate: rate <= true, lowest=500.0, most=200_000.0)

    assert found <= true < 1.05 * found


def test_no_rate_may_hold():
    """The result is 0 if not even the lowest rate holds, tried twice."""
    tried = []

    assert 0.0 == highest(tried.append, lowest=500.0, most=1000.0)
    assert [500.0, 500.0] == tried


def test_no_rate_above_the_limit_is_tried():
    """A search in which everything holds ends at its limit."""
    tried = []

    assert 1500.0 == highest(lambda rate: not tried.append(rate), lowest=500.0, most=1500.0)
    assert [500.0, 1000.0, 1500.0] == tried


def test_a_disturbed_attempt_does_not_decide():
    """A rate that fails once and then holds, holds."""
    failed = set()

    def holds(rate: float) -> bool:
        if rate in failed:
            return rate <= 3000
        failed.add(rate)
        return False

    assert 2800 <= highest(holds, lowest=500.0, most=200_000.0) <= 3000
