"""Log lines about damaged data: at most one per second and queue, with the queue's name and the position."""

from collections.abc import Iterable, Iterator

from leveret.broker.vhost.vhost import VHost
from leveret.storage.damage import TEXTS, Damage, Damages
from leveret.storage.queues.queue_ids import owner_qid

SECONDS = 1.0


class DamageLog:
    """Formats the damage found since the last call; vhosts have the names of queues, and of exchanges with delays."""

    def __init__(self, damages: Damages, vhosts: dict[str, VHost]) -> None:
        self._damages = damages
        self._vhosts = vhosts
        self._due = 0.0

    def lines(self, now: float) -> Iterable[str]:
        """Return the lines to log; at most one batch per second. `now` in seconds of the loop's clock."""
        if now < self._due:
            return ()
        self._due = now + SECONDS
        met = self._damages.take()
        return list(self._lines(met)) if met else ()

    def _lines(self, met: list[Damage]) -> Iterator[str]:
        names = self._names({owner_qid(each.qid) for each in met})
        for each in met:
            name = names.get(owner_qid(each.qid), f"an unknown queue (id {owner_qid(each.qid)})")
            more = f"; and {each.others} more" if each.others else ""
            yield f"damaged data of {name}: {TEXTS[each.kind]} (position {each.position}, {each.kind}){more}"

    def _names(self, wanted: set[int]) -> dict[int, str]:
        names = {}
        for vhost in self._vhosts.values():
            for queue in vhost.queues.values():
                qid = getattr(queue.store, "qid", 0)  # data in memory is never damaged, and has no qid
                if qid in wanted:
                    names[qid] = f"queue '{queue.name}' in vhost '{vhost.name}'"
            for exchange in vhost.router.exchanges.values():
                number = getattr(exchange.line, "number", 0)
                if number in wanted:
                    names[number] = f"exchange '{exchange.name}' in vhost '{vhost.name}'"
        return names
