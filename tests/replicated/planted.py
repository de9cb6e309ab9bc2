"""Planted bugs: each is a patch of the seam or of the engine that the simulation must catch."""

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from replicated.logs import LogHost
from replicated.memory import Database
from replicated.world import SETTINGS, Host, World

from leveret.broker.replication import node as nodes, snapshots
from leveret.broker.replication.chain import EMPTY
from leveret.broker.replication.engine import Append, Trimmed
from leveret.broker.replication.follower import Follower
from leveret.broker.replication.leader import Leader
from leveret.broker.replication.node import Node, Role
from leveret.broker.replication.settings import Settings


def no_epoch_check():
    return [(Database, "admits", lambda self, entry: self.lease.last == entry.index - 1)]


def check_without_lock():
    return [(World, "check_has_lock", False)]


def settled_before_answer():
    make = Leader._make

    def hasty(self, kind, payload, tickets):
        self.logged.extend(tickets)
        return make(self, kind, payload, tickets)

    return [(Leader, "_make", hasty)]


def found_row_settled():
    refused = Leader._refused

    def trusting(self, request, lease):
        refused(self, request, lease)
        if isinstance(request, Append) and not self.reason:
            self._settle(min(lease.last, self._tail.index))

    return [(Leader, "_refused", trusting)]


def unsettled_row_applied():
    return [(Follower, "note_settled", lambda self, _index: setattr(self, "settled", self.end.index))]


def retry_appended_twice():
    refused = Leader._refused

    def forgetful(self, request, lease):
        refused(self, request, lease)
        if isinstance(request, Append) and not self.reason:
            for entry, tickets in list(self._unsettled):
                if entry.index <= self._sent and entry.kind != EMPTY:
                    self._make(entry.kind, entry.payload, tickets)

    return [(Leader, "_refused", forgetful)]


def lease_outlived():
    return [(World, "__init__", partial_init(freshness=8.0))]


def partial_init(**settings):
    init = World.__init__

    def changed(self, seed, *arguments, **more):
        init(self, seed, *arguments, **({"settings": SETTINGS._replace(**settings)} | more))

    return changed


def trim_ahead_of_member():
    def hasty(lease, last, up, trimmed, settings: Settings):
        return 0 if last is None else last.position.index

    return [(snapshots, "trim_through", hasty)]


def trim_without_snapshot():
    def careless(self, request):
        self.cut(request.through)
        return Trimmed(self.base.index)

    return [
        (Database, "trim", careless),
        (snapshots, "trim_through", lambda lease, *_: lease.settled if lease.octets > 2000 else 0),
    ]


def snapshot_without_its_index():
    begin, complete = Node.begin_snapshot, snapshots.Making.complete

    def labelled_late(self, position, chunks):
        begin(self, position, chunks)
        self._making.follower = self.follower

    def labelled(self):
        return complete(self)._replace(position=self.follower.position)

    return [(Node, "begin_snapshot", labelled_late), (snapshots.Making, "complete", labelled)]


def applied_out_of_order():
    taking = Follower.next_to_apply

    def unordered(self, octets):
        tail = self._tail
        if self._applying is None and len(tail) > 1 and tail[1].index <= self.settled:
            tail[0], tail[1] = tail[1], tail[0]
        return taking(self, octets)

    return [(Follower, "next_to_apply", unordered)]


def opened_before_replay():
    def hasty(self):
        if self.role is Role.REPLAYING and self.leader is not None and self.leader.settled >= self._own_entry:
            self.role = Role.LEADING
            self.events.append(nodes.Open(self.leader.epoch))

    return [(Node, "_open_if_replayed", hasty)]


def ids_by_own_starts():
    def counted(self):
        self.node.leader._ids += 1
        return self.starts << 40 | self.node.leader._ids

    return [(Host, "new_id", counted)]


def evicted_before_applied():
    look = Node._look_after_leader

    def hasty(self, now):
        entries = list(self.leader.entries) if self.leader is not None else []
        look(self, now)
        if entries:
            self.events.append(nodes.Evictable(entries[-1].index))

    return [(Node, "_look_after_leader", hasty)]


BUGS = (
    no_epoch_check,
    check_without_lock,
    settled_before_answer,
    found_row_settled,
    unsettled_row_applied,
    retry_appended_twice,
    lease_outlived,
    trim_ahead_of_member,
    trim_without_snapshot,
    snapshot_without_its_index,
    applied_out_of_order,
    opened_before_replay,
    ids_by_own_starts,
    evicted_before_applied,
)


def entry_in_another_log():
    publish = LogHost.publish_in

    def misled(self, vhost, text, named=()):
        for each in self.world.logs.on(self.name):
            if each is not self and not named and each.node.role is Role.LEADING and each.is_open:
                return publish(each, vhost, text)
        return publish(self, vhost, text, named)

    return [(LogHost, "publish_in", misled)]


def move_without_deletion():
    made = Database.move

    def half(self, move):
        before = self.moved
        other = made(self, move)
        self.moved = before
        return other

    return [(Database, "move", half)]


def move_without_copy():
    def half(self, move):
        other = Database()
        made(self, move)
        other.moved = (self.moved[-1]._replace(is_here=True),)
        return other

    made = Database.move
    return [(Database, "move", half)]


def one_renewal_for_all_logs():
    answered = LogHost.answered

    def shared(self, lane, link, answer):
        answered(self, lane, link, answer)
        nodes = [each.node for each in self.world.logs.on(self.name) if each.node.leader is not None]
        for each in nodes:
            each.leader.renewed = max(other.leader.renewed for other in nodes)

    return [(LogHost, "answered", shared)]


def forward_to_deposed_leader():
    return [(LogHost, "may_serve", lambda _self: True)]


BUGS_OF_LOGS = (
    entry_in_another_log,
    move_without_deletion,
    move_without_copy,
    one_renewal_for_all_logs,
    forward_to_deposed_leader,
)


@contextmanager
def planted(bug):
    with ExitStack() as stack:
        for owner, name, replacement in bug():
            stack.enter_context(patch.object(owner, name, replacement))
        yield
