import pytest
from fuzz.run import attack

CASES = 2_500
"""An eighth of `make campaign NAME=fuzz`."""


@pytest.mark.timeout(300)
def test_mutated_sessions_disturb_nobody():
    """2,500 hostile sessions reach every method and leave the broker, its log and the canary as they were."""
    result = attack(seed=1, cases=CASES)
    assert [] == result.problems, "\n".join(result.lines())
    assert CASES == result.mutated
    assert result.rounds > 12
