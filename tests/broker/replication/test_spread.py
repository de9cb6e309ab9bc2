"""The logs of a machine that dies, in the simulated world: who takes them over, and how soon."""

from collections import Counter

import pytest
from replicated.logs import Log, Logs
from replicated.memory import MemoryEngine

from leveret.broker.replication.node import Role

NAMES = "abcdef"
TAKEOVER_SECONDS = 9.0


class Quiet(Logs):
    """Six logs, of which nothing fails by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.logs = {name: Log(self, name, MemoryEngine(server=self.server, log=name)) for name in NAMES}
        for log in self.logs.values():
            log.unrest = 0
            log.go_wrong = bool
            log.start()
        self.clients.clear()

    def leaders(self) -> Counter[str]:
        hosts = (host for log in self.logs.values() for host in log.hosts)
        return Counter(each.name for each in hosts if each.is_up and each.node.role is Role.LEADING)

    def until(self, seconds: float, logs: int) -> Counter[str]:
        """Run until so many logs are led."""
        end = self.time.now + seconds
        while self.leaders().total() < logs:
            assert self.time.now < end, self.leaders()
            self.time.run_until(self.time.now + 0.1)
        return self.leaders()


@pytest.mark.parametrize("led", [2, 4, 6])
@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_the_logs_of_a_machine_that_ends_are_spread(led: int, ended: str) -> None:
    """Both others lead as many then, whatever n0 led of six, and a kill costs no log more than nine seconds."""
    for seed in range(1, 5):
        world = Quiet(seed)
        assert {2} == set(world.until(30, len(NAMES)).values())
        for log in [each for each in world.logs.values() if each.hosts[0].node.role is not Role.LEADING][
            : led - 2
        ]:
            next(each for each in log.hosts if each.node.role is Role.LEADING).node.hand_over("n0")
        world.time.run_until(world.time.now + 10)
        assert led == world.until(30, len(NAMES))["n0"]

        for host in world.on("n0"):
            if ended == "stopped" and host.node.role is Role.LEADING:
                host.node.hand_over()
            elif ended == "killed":
                host.stop()

        world.time.run_until(world.time.now + (0.1 if ended == "killed" else 2))
        found = world.until(TAKEOVER_SECONDS, len(NAMES))
        assert {"n1": 3, "n2": 3} == found, (seed, found)
