"""Metrics of all processes of virtual hosts as those of one broker, with a label for the process (driver)."""

from collections.abc import Iterable, Iterator

from aiohttp import web

from leveret.broker.http.errors import ApiError
from leveret.broker.http.running_brokers import METRICS
from leveret.broker.metrics.http import Monitor
from leveret.broker.metrics.text import GAUGE, LINES, family
from leveret.broker.placement.front import FrontServer
from leveret.broker.placement.joining import Answers
from leveret.broker.placement.questions import TOO_LONG, Questions
from leveret.broker.scheduling.time_slices import portions

_FRONT = 0  # the front among the processes
_OF_NODE = frozenset({"leveret_build_info", "rabbitmq_build_info", "rabbitmq_identity_info"})
"""Families that others are joined with: there is one sample, that of the front."""
_OF_VHOSTS = frozenset({"rabbitmq_exchanges"})
"""Families of objects that the front has without use."""


class FrontMonitor(Monitor):
    """Serves metrics of the front and all processes."""

    def __init__(self, broker: FrontServer, *, per_object: bool = False) -> None:
        super().__init__(broker, per_object=per_object)
        self._questions = Questions(broker, METRICS)

    async def stop(self) -> None:
        """Stop as any monitor, and close the connections to the processes."""
        await super().stop()
        await self._questions.close()

    async def _whole(self, request: web.Request, pieces: Iterator[str]) -> Iterator[str]:
        try:
            answers = await self._questions.ask_all("GET", request.rel_url.raw_path_qs, {}, is_list=True)
        except ApiError:
            raise web.HTTPServiceUnavailable(text=TOO_LONG) from None
        return merged((line for piece in pieces for line in piece.splitlines()), answers)


def merged(own: Iterable[str], answers: Answers) -> Iterator[str]:
    """Yield the families of the front, by its lines, and of the processes that have answered; "" between steps."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    up = [(each.process, 1) for each in answers.found] + [(number, 0) for number in answers.missing]
    parts = [(each.process, map(bytes.decode, each.lines)) for each in answers.found]
    for number, lines in ((_FRONT, own), *parts):
        label = f'process="{number}"'
        name, is_wanted = "", True
        for at, line in enumerate(lines):
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                heads, samples = families.setdefault(name, ([], []))
                heads += [] if line in heads or len(heads) > 1 else [line]
                is_wanted = name not in (_OF_VHOSTS if number == _FRONT else _OF_NODE)
            elif is_wanted and line:
                samples.append(line if name in _OF_NODE else _labelled(line, label))
            if not at % LINES:
                yield ""
    for heads, samples in families.values():
        for some in portions([*heads, *samples], LINES):
            yield "\n".join(some) + "\n"
    samples_of_up = [("", f'process="{number}"', is_up) for number, is_up in sorted(up)]
    yield family(
        "leveret_process_up", GAUGE, "1 for each process of virtual hosts that answers", samples_of_up
    )


def _labelled(line: str, label: str) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"
