import pytest
from fuzz.run import attack


@pytest.mark.timeout(300)
def test_mutated_sessions_disturb_nobody():
    """20,000 hostile sessions reach every method and leave the broker, its log and the canary as they were."""
    result = attack(seed=1, cases=20_000)
    assert [] == result.problems, "\n".join(result.lines())
    assert 20_000 == result.mutated
    assert result.rounds > 100
