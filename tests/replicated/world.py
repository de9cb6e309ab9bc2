"""A simulated world: three nodes, a network, an engine with a standby, clocks that differ by 1 %, and whatever goes wrong.

Everything that happens is an event in one heap, and every choice comes from the seed: a seed always takes the same
course. What must hold is checked as things happen; a violation is an AssertionError that names it.
"""

import heapq
import json
from hashlib import sha256
from random import Random

from replicated.memory import STANDBYS, MemoryEngine

from leveret.broker.replication import chain, engine as protocol, node as nodes
from leveret.broker.replication.node import LEASE, READ, Node, Role
from leveret.broker.replication.settings import Settings

SECONDS = 26.0
"""Time for which things go wrong."""
HEALING = 40.0
"""Time within which all is well again afterwards."""
TICK = 0.2
SETTINGS = Settings(
    max_batch=200,
    chunk=64,
    read_octets=400,
    tail_octets=2000,
    apply_octets=500,
    late_octets=1000,
    snapshot_octets=1200,
    trim_cap=4000,
)


class Time:
    """Events, in the order of time."""

    def __init__(self):
        self.now = 0.0
        self._heap = []
        self._number = 0

    def at(self, when, what, *arguments):
        """Have something happen."""
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, what, arguments))

    def run_until(self, end):
        """Let everything happen up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, what, arguments = heapq.heappop(heap)
            what(*arguments)
        self.now = end


class Copy:
    """The state of a node on its disk: each change is one step."""

    def __init__(self):
        self.position = protocol.ORIGIN
        self.digest = ""
        self.messages = {}
        self.parts = {}
        self.open = chain.OpenBodies()

    def apply(self, entry):
        for body in self.open.begin(entry):
            self.parts.pop(body, None)
        if entry.kind == chain.CHUNK:
            chunk = chain.split_chunk(entry.payload)
            self.open.take(chunk)
            self.parts[chunk.body] = self.parts.get(chunk.body, "") + chunk.data.decode()
        elif entry.kind == chain.BATCHES:
            for batch in chain.split_batches(entry.payload):
                self.open.close(batch)
                id_, text = json.loads(batch.payload)
                for body in batch.named:
                    text += self.parts.pop(body)
                self.messages[id_] = text
        seen = f"{self.digest} {entry.index} {entry.kind}".encode() + entry.payload
        self.digest = sha256(seen).hexdigest()[:24]
        self.position = entry.position

    def dump(self):
        """Return everything but the position, as a snapshot has it."""
        whole = {
            "digest": self.digest,
            "messages": list(self.messages.items()),
            "parts": list(self.parts.items()),
            "epoch": self.open.epoch,
            "sizes": list(self.open.sizes.items()),
            "whole": sorted(self.open.whole),
        }
        data = json.dumps(whole).encode()
        return [data[at : at + 512] for at in range(0, len(data), 512)]

    @classmethod
    def load(cls, chunks, position):
        whole = json.loads(b"".join(chunks))
        copy = cls()
        copy.position = position
        copy.digest = whole["digest"]
        copy.messages = dict(whole["messages"])
        copy.parts = dict(whole["parts"])
        copy.open = chain.OpenBodies(whole["epoch"], dict(whole["sizes"]), frozenset(whole["whole"]))
        return copy


class Host:
    """A machine with a node: a disk, a clock, connections."""

    def __init__(self, world, number):
        self.world = world
        self.name = f"n{number}"
        random = world.random
        self.rate = random.uniform(0.99, 1.01)
        self.offset = random.uniform(0, 1000)
        self.copy = Copy()
        self.starts = 0
        self.life = 0
        """Rises with each end of the process: what was under way then comes to nothing."""
        self.is_up = False
        self.paused_until = 0.0
        self.cut_until = 0.0
        self.link = [0, 0]
        """Number of the connection of each lane."""
        self.node = None
        self.aside = []

    def clock(self):
        return self.offset + self.rate * self.world.now

    def start(self):
        self.starts += 1
        self.is_up = True
        self.aside = []
        self.waiting = {}
        """Ticket -> what waits for it: the text of a message, or of a body that is to be named."""
        self.memory = {}
        """Texts of messages by id, which are not on disk as far as the node has said."""
        self.index = {}
        self.is_open = False
        self.slow_until = 0.0
        self.woken_for = 0.0
        """Time of the read for which the node is woken before its next tick."""
        self.node = Node(
            self.name, "", self.copy.position, self.clock(), self.world.make_id, self.world.settings
        )
        self.later(self.world.random.uniform(0, TICK), self.tick)

    def stop(self, *, wiped=False):
        """End the process as by kill -9."""
        self.is_up = False
        self.life += 1
        if wiped:
            self.copy = Copy()
            self.starts = 0

    def later(self, seconds, what, *arguments):
        """Do something here after a while, unless the process has ended; once it goes on if it is paused."""
        self.world.at(self.world.now + seconds, self._do, self.life, what, arguments)

    def _do(self, life, what, arguments):
        if life != self.life or not self.is_up:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, self._do, life, what, arguments)
            return
        what(*arguments)
        self.pump()

    def tick(self):
        self.node.tick(self.clock())
        self.later(TICK, self.tick)

    def pump(self):
        """Do as the node says."""
        node = self.node
        while True:
            events, node.events = node.events, []
            for event in events:
                self.handle(event)
            for lane in (LEASE, READ):
                request = node.next(lane, self.clock())
                if request is not None:
                    self.world.send(self, lane, request)
            if not node.events:
                break
        left = node.wake_in(self.clock())
        if left < TICK and self.clock() + left != self.woken_for:
            self.woken_for = self.clock() + left
            self.later(left / self.rate + 1e-6, bool)

    def answered(self, lane, link, answer):
        if link != self.link[lane]:
            return
        self.node.answered(lane, answer, self.clock())

    def told(self):
        self.node.look(self.clock())

    def broken(self, lane, link):
        if link != self.link[lane]:
            return
        self.link[lane] += 1
        self.node.unanswered(lane, self.clock())

    # -- events -----------------------------------------------------------------------------------------------------

    def handle(self, event):
        world, random = self.world, self.world.random
        match event:
            case nodes.Apply(entries):
                world.check_applied(self, entries)
                for entry in entries:
                    for id_, _ in texts(entry):
                        self.index[id_] = entry.index
                self.later(self.slowness(), self.apply, entries)
            case nodes.Wipe():
                self.later(random.uniform(0.001, 0.05), self.wipe)
            case nodes.RestoreChunk(data):
                self.aside.append(data)
            case nodes.Abandon():
                self.aside = []
            case nodes.Restore(position):
                self.later(random.uniform(0.001, 0.05), self.restore, position)
            case nodes.Open(epoch):
                self.is_open = True
                world.check_opened(self, epoch)
                self.later(0.001, self.load)
            case nodes.Close():
                self.is_open = False
                self.waiting.clear()
                self.memory.clear()
                self.index.clear()
            case nodes.Logged(tickets):
                for ticket in tickets:
                    self.logged(ticket)
            case nodes.Evictable(through):
                for id_ in [each for each in self.memory if self.index.get(each, through + 1) <= through]:
                    del self.memory[id_]
            case nodes.MakeSnapshot():
                self.node.begin_snapshot(self.copy.position, iter(self.copy.dump()))

    def slowness(self):
        if self.world.now < self.slow_until:
            return self.slow_until - self.world.now
        return self.world.random.uniform(0.0005, 0.01)

    def apply(self, entries):
        for entry in entries:
            try:
                self.copy.apply(entry)
            except chain.BadEntryError as error:
                raise AssertionError(f"{self.name} cannot apply {entry.index}: {error}") from error
            self.world.check_state(self)
        self.node.applied(self.clock())

    def wipe(self):
        self.copy = Copy()
        self.node.wiped(self.clock())

    def restore(self, position):
        self.copy = Copy.load(self.aside, position)
        self.aside = []
        self.node.restored(self.clock())

    # -- clients ----------------------------------------------------------------------------------------------------

    def load(self):
        """Publish something, look at something that needs no log, and come again."""
        if not self.is_open or self.world.is_over:
            return
        random = self.world.random
        self.world.check_lease(self)
        if self.node.may_answer(self.clock()):
            self.read_back()
            if random.random() < 0.06:
                body = self.new_id()
                text = "b" * random.randint(70, 300)
                ticket = self.node.submit_body(body, text.encode())
                self.waiting[ticket] = (body, text)
            else:
                self.publish(str(self.world.next_text()), ())
        self.later(random.uniform(0.005, 0.12), self.load)

    def new_id(self):
        return self.node.leader.new_id()

    def publish(self, text, named):
        id_ = self.new_id()
        ticket = self.node.submit(chain.Batch(json.dumps([id_, text]).encode(), named))
        self.waiting[ticket] = text
        self.memory[id_] = text

    def logged(self, ticket):
        waiting = self.waiting.pop(ticket, None)
        match waiting:
            case str(text):
                self.world.check_answered(self, text)
            case (body, _) if self.is_open and not self.node.leader.is_handing_over:
                self.publish(str(self.world.next_text()), (body,))

    def read_back(self):
        if self.index:
            id_ = self.world.random.choice(list(self.index)[-4:])
            assert id_ in self.memory or id_ in self.copy.messages, f"{id_} evicted before it was applied"


def texts(entry):
    if entry.kind != chain.BATCHES:
        return []
    return [tuple(json.loads(batch.payload)) for batch in chain.split_batches(entry.payload)]


class World:
    """All of it.

    Args:
        seed: of every choice; or who makes them.
        engine: the engine; a subclass may have a planted bug.
        settings: of the nodes.
        time: shared with others.

    """

    host_class = Host
    check_has_lock = True
    """False: an append is checked before it has the lock (a planted bug)."""

    def __init__(self, seed, engine=MemoryEngine, settings=SETTINGS, time=None):
        self.random = seed if isinstance(seed, Random) else Random(seed)
        self.settings = settings
        self.time = time or Time()
        self.at = self.time.at
        self.engine = engine()
        self.engine_life = 0
        self.engine_down_until = 0.0
        self.lock_queue = []
        self.is_over = False
        self.counts = {"answered": 0, "opened": 0, "trimmed": 0, "promoted": 0, "found": 0, "together": 0}
        self._texts = 0
        self.log = {}
        """Each entry that was replicated, by index."""
        self.logged_texts = {}
        self.ids = set()
        self.answered = set()
        self.digests = {}
        self.leaders = {}
        self.holders = {}
        self.reported = {}
        """Of each member: time since which its reports have come without a gap; time and index of the last one."""
        self.hosts = [self.host_class(self, number) for number in range(3)]
        self.unrest = self.random.choice([0.3, 0.6, 1.0])

    def make_id(self):
        return self.random.randbytes(16)

    def next_text(self):
        self._texts += 1
        return self._texts

    @property
    def now(self):
        return self.time.now

    def run(self):
        """Let things go wrong, then heal, and compare what is left."""
        self.start()
        self.time.run_until(SECONDS)
        self.heal()
        deadline = SECONDS + HEALING
        while not self.is_well():
            assert self.now < deadline, f"not well again: {self.roles()}"
            self.time.run_until(self.now + 1)
        self.check_end()
        return self.counts

    def start(self):
        """Start all nodes, and let things go wrong."""
        for host in self.hosts:
            host.start()
        self.at(self.now + self.random.uniform(0, 3), self.go_wrong)

    def heal(self):
        """Let nothing more go wrong."""
        self.is_over = True
        self.engine_down_until = self.now
        for host in self.hosts:
            host.paused_until = host.cut_until = host.slow_until = self.now
            if not host.is_up:
                host.start()

    def roles(self):
        """Return the roles of the nodes."""
        return [host.node.role for host in self.hosts]

    def is_well(self):
        """Return whether one node leads and all have applied the whole log."""
        last = self.engine.standby.lease.last
        roles = sorted(role.value for role in self.roles())
        return (
            roles == ["leading", "waiting", "waiting"]
            and all(host.copy.position.index == last for host in self.hosts)
            and not self.engine.is_locked
        )

    # -- network and engine -----------------------------------------------------------------------------------------

    def delay(self):
        random = self.random
        if random.random() < 0.004 * self.unrest and not self.is_over:
            return random.uniform(0.5, 8)
        return random.uniform(0.0002, 0.004)

    def send(self, host, lane, request):
        link = host.link[lane]
        if self.now < host.cut_until:
            host.later(self.random.uniform(0.01, 1), host.broken, lane, link)
            return
        self.at(self.now + self.delay(), self.arrive, self.engine_life, host, host.life, lane, link, request)

    def arrive(self, engine_life, host, life, lane, link, request):
        if engine_life != self.engine_life or self.now < self.engine_down_until:
            self.break_off(host, life, lane, link)
            return
        work = (host, life, lane, link, request)
        if not self.engine.changes(request):
            self.answer(work, self.engine.look(request))
        elif not self.check_has_lock and isinstance(request, protocol.Append):
            self.append_unlocked(work)
        elif self.engine.is_locked:
            self.lock_queue.append(work)
        else:
            self.begin(work)

    def begin(self, work):
        self.engine.begin(work[-1])
        random = self.random
        wait = random.uniform(0.0005, 0.004)
        if random.random() < 0.004 * self.unrest and not self.is_over:
            wait = random.uniform(0.5, 9)
        self.at(self.now + wait, self.finish, self.engine_life, work)

    def finish(self, engine_life, work):
        if engine_life != self.engine_life:
            return
        before = self.engine.visible
        answer = self.engine.finish()
        self.check_change(work[-1], answer, before, self.engine.standby)
        self.answer(work, answer)
        if isinstance(work[-1], protocol.Release) and isinstance(answer, protocol.Renewed):
            self.tell_all()
        if self.lock_queue:
            self.begin(self.lock_queue.pop(0))

    def append_unlocked(self, work):
        """Append as a statement would that checks the lease without locking it."""
        request = work[-1]
        if not self.engine.visible.admits(request.entry):
            self.answer(work, protocol.Refused(self.engine.visible.lease))
            return
        random = self.random
        wait = (
            random.uniform(0.5, 9) if random.random() < 0.004 * self.unrest else random.uniform(0.0005, 0.004)
        )
        self.at(self.now + wait, self.finish_unlocked, self.engine_life, work)

    def finish_unlocked(self, engine_life, work):
        if engine_life != self.engine_life:
            return
        before = self.engine.visible
        database = self.engine.visible.copy()
        database.put(work[-1].entry)
        self.engine.visible = self.engine.standby = database
        answer = protocol.Appended(protocol.Proof(STANDBYS, self.engine.timeline))
        self.check_change(work[-1], answer, before, database)
        self.answer(work, answer)

    def answer(self, work, answer):
        host, life, lane, link, _ = work
        if life != host.life:
            return
        random = self.random
        if not self.is_over and (self.now < host.cut_until or random.random() < 0.006 * self.unrest):
            self.break_off(host, life, lane, link)
            return
        delay = self.delay()
        if isinstance(answer, protocol.Taken) and random.random() < 0.3 * self.unrest and not self.is_over:
            delay += random.uniform(
                0.1, 2
            )  # an append of the former leader may come before the first of the new one
        host.later(delay, host.answered, lane, link, answer)

    def tell_all(self):
        """Tell the hosts that the lease was given back, but for those that the engine does not reach."""
        for host in self.hosts:
            if host.is_up and self.now >= host.cut_until:
                host.later(self.delay(), host.told)

    def break_off(self, host, life, lane, link):
        """The connection breaks: its client learns that, after a while, and nothing else."""
        if life == host.life:
            host.later(self.random.uniform(0.001, 1), host.broken, lane, link)

    def end_of_engine(self):
        """All connections to the engine break, and what waits for the lock comes to nothing."""
        self.engine_life += 1
        self.lock_queue.clear()
        self.engine_down_until = self.now + self.random.uniform(0.01, 1.5)
        for host in self.hosts:
            for lane in (LEASE, READ):
                self.break_off(host, host.life, lane, host.link[lane])

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def go_wrong(self):
        if self.is_over:
            return
        random = self.random
        host = random.choice(self.hosts)
        leading = [each for each in self.hosts if each.is_up and each.node.role is Role.LEADING]
        if leading and random.random() < 0.5:
            host = leading[0]
        match random.randrange(9):
            case 0:
                host.paused_until = self.now + random.uniform(0.3, 9)
            case 1:
                self.kill(host)
            case 2:
                self.kill(host, wiped=random.random() < 0.5)
            case 3:
                host.cut_until = self.now + random.uniform(0.2, 7)
            case 4:
                self.counts["found"] += self.engine.is_locked
                self.engine.restart()
                self.end_of_engine()
            case 5:
                self.restart_locked()
            case 6:
                self.engine.promote()
                self.end_of_engine()
                self.counts["promoted"] += 1
            case 7 if leading:
                if random.random() < 0.5:
                    leading[0].node.apply_late()
                leading[0].node.hand_over(random.choice(["", "n0", "n1", "n2"]))
                leading[0].is_open = False
            case _:
                host.slow_until = self.now + random.uniform(0.2, 12)
        self.at(self.now + random.expovariate(self.unrest), self.go_wrong)

    def kill(self, host, *, wiped=False):
        if host.is_up:
            host.stop(wiped=wiped)
            host.is_open = False
            self.at(self.now + self.random.uniform(0.1, 5), self.start_again, host)

    def start_again(self, host):
        if not host.is_up:
            host.start()

    def restart_locked(self):
        """Restart the engine while a change is not replicated; shortly afterwards the standby may be promoted."""
        if not self.engine.is_locked:
            if not self.is_over:
                self.at(self.now + 0.003, self.restart_locked)
            return
        self.counts["found"] += 1
        self.engine.restart()
        self.end_of_engine()
        if self.random.random() < 0.5:
            self.at(self.engine_down_until + self.random.uniform(0.01, 0.8), self.promote_after)

    def promote_after(self):
        self.engine.promote()
        self.end_of_engine()
        self.counts["promoted"] += 1

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check_change(self, request, answer, before, after):
        if isinstance(answer, protocol.Taken):
            epoch, holder = answer.lease.epoch, answer.lease.holder
            assert epoch not in self.holders, f"epoch {epoch} has two holders"
            self.holders[epoch] = holder
        elif isinstance(answer, protocol.Appended):
            self.check_appended(request.entry, before)
        elif isinstance(request, protocol.Trim) and after.base.index > before.base.index:
            self.counts["trimmed"] += 1
            through, lease, snapshot = after.base.index, after.lease, after.snapshot
            assert snapshot is not None, "trimmed without a snapshot"
            assert through <= snapshot.position.index, "trimmed beyond the snapshot"
            if lease.octets - snapshot.log_octets < self.settings.trim_cap - 1000:
                for host in self.hosts:
                    since, when, index = self.reported.get(host.name, (0, 0, 0))
                    is_up = (
                        self.now - when < 4 and self.now - since > 20
                    )  # longer than a request may be under way
                    needs = before.base.index <= max(index, host.copy.position.index) < through
                    assert not needs or not is_up, f"trimmed ahead of {host.name}"
        for name, member in after.members.items():
            if member is not before.members.get(name):
                since, when, index = self.reported.get(name, (self.now, self.now, 0))
                if self.now - when >= 3 or member.position.index < index:  # it was down, or wiped
                    since = self.now
                self.reported[name] = (since, self.now, member.position.index)

    def check_appended(self, entry, before):
        index = entry.index
        known = self.log.get(index)
        assert known is None or known == entry, f"entry {index} was replaced"
        assert before.lease.last == index - 1, f"entry {index} follows {before.lease.last}"
        assert before.lease.epoch == entry.epoch, (
            f"entry {index} of epoch {entry.epoch} in {before.lease.epoch}"
        )
        assert self.holders[entry.epoch] == entry.holder, f"entry {index} is of another holder"
        self.note_durable()

    def note_durable(self):
        """Take entries into account that became durable, perhaps with a later one: found after a restart."""
        for index, entry in self.engine.standby.entries.items():
            if index not in self.log:
                self.log[index] = entry
                for id_, text in texts(entry):
                    assert text not in self.logged_texts, f"{text} is in the log twice"
                    assert id_ not in self.ids, f"id {id_} is in the log twice"
                    self.logged_texts[text] = index
                    self.ids.add(id_)
                    self.check_text(entry, id_, text)

    def check_text(self, entry, id_, text):
        """Check a text that became durable."""

    def check_answered(self, host, text):
        self.note_durable()
        assert text in self.logged_texts, f"{host.name} answered {text}, which is not in the log"
        self.answered.add(text)
        self.counts["answered"] += 1

    def check_applied(self, host, entries):
        self.note_durable()
        self.counts["together"] += len(entries) > 1
        for index, entry in enumerate(entries, host.copy.position.index + 1):
            assert self.log.get(entry.index) == entry, (
                f"{host.name} applies {entry.index}, which is not settled"
            )
            assert entry.index == index, f"{host.name} applies {entry.index} out of order"

    def check_state(self, host):
        index = host.copy.position.index
        known = self.digests.setdefault(index, host.copy.digest)
        assert known == host.copy.digest, f"the state of {host.name} differs at {index}"

    def check_opened(self, host, epoch):
        assert self.leaders.setdefault(epoch, host.name) == host.name, f"epoch {epoch} has two leaders"
        first = min(index for index, entry in self.log.items() if entry.epoch == epoch)
        assert host.copy.position.index >= first, f"{host.name} opened before the replay was done"
        self.counts["opened"] += 1

    def check_lease(self, host):
        leader = host.node.leader
        if host.node.may_answer(host.clock()):
            held = self.engine.standby.lease
            assert (held.epoch, held.holder) == (leader.epoch, leader.holder), (
                f"{host.name} outlived its lease"
            )

    def check_end(self):
        self.note_durable()
        for host in self.hosts:
            self.check_state(host)
            have = set(host.copy.messages.values())
            missing = [text for text in self.answered if text not in {each.split("b")[0] for each in have}]
            assert not missing, f"{host.name} lacks {missing[:5]}, which were answered"
        last = self.engine.standby.lease.last
        assert max(self.log) == last == len(self.log), "the log has gaps"


def walk(seed, world=World, **arguments):
    return world(seed, **arguments).run()
