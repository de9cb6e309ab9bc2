"""Import of definitions: checks every entry before anything is changed, and computes the changes."""

from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any

from leveret.broker.administration.access import AdministeredBroker, AdministrationError, DefinitionsError
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.administration.definitions_planned import Names, Planned, Step, UncheckedError
from leveret.broker.administration.definitions_reading import Problem, Reading
from leveret.broker.administration.definitions_settings import SettingsChecks
from leveret.broker.administration.definitions_topology import TopologyChecks
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.errors import AMQPError
from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.exchanges.errors import ExchangeError

INVALID = AdministrationError, DefinitionsError, ExchangeError, InvalidPatternError, ParameterError


class Plan:
    """The changes of an import: `changes` checks every entry, and only the steps it yields change anything.

    Args:
        broker: the broker.
        reading: the file; its entries are removed from it as they are checked, because many are not freed in one step.

    Attributes:
        outcome: what the import does, or why it is refused; complete when `changes` is at its end.

    """

    def __init__(self, broker: AdministeredBroker, reading: Reading) -> None:
        self._reading = reading
        self._names = Names(broker)
        self._settings = SettingsChecks(broker, self._names)
        self._topology = TopologyChecks(broker, self._names)
        self.outcome = Outcome()

    def changes(self) -> Iterator[Step | None]:
        """Yield the changes in order, each after its entry was checked, and None for an entry that is refused."""
        settings, topology = self._settings, self._topology
        plans: tuple[tuple[str, Callable[[Any], Planned]], ...] = (
            ("vhosts", settings.vhost),
            ("users", settings.user),
            ("permissions", settings.permission),
            ("topic_permissions", settings.topic_permission),
            ("parameters", settings.parameter),
            ("global_parameters", settings.global_parameter),
            ("policies", settings.policy),
            ("exchanges", topology.exchange),
            ("queues", topology.queue),
            ("bindings", topology.binding),
        )
        refused: dict[str, set[int]] = {}
        for problem in self._reading.problems:
            self._refuse(problem)
            if problem.at is not None:
                refused.setdefault(problem.section, set()).add(problem.at)
            yield None
        for section, plan in plans:
            skipped = refused.get(section, ())
            positions = (at for at in count() if at not in skipped)
            entries = getattr(self._reading.document, section)
            if section == "bindings":
                yield from topology.noting_bindings(entries)
            entries.reverse()
            while entries:
                yield self._checked(section, next(positions), entries.pop(), plan)
        for _ in chain(self._names.forgetting(), topology.forgetting()):
            yield None

    def _checked(self, section: str, at: int, entry: Any, plan: Callable[[Any], Planned]) -> Step | None:
        try:
            planned = plan(entry)
        except UncheckedError:
            self.outcome.leave_unchecked(section, entry)
            self._names.refuse(section, entry)
            return None
        except AMQPError as error:
            self._refuse(Problem(section, at, entry, error.explanation))
            return None
        except INVALID as error:
            text = str(error).removeprefix("Validation failed").strip()
            self._refuse(Problem(section, at, entry, text))
            return None
        self.outcome.add(section, at, entry, planned.before, planned.after, is_kept=planned.is_kept)
        return planned.apply

    def _refuse(self, problem: Problem) -> None:
        self.outcome.refuse(problem)
        self._names.refuse(problem.section, problem.entry)
