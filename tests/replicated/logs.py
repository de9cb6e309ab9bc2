"""The simulated world with several logs in one database: virtual hosts that move, and clients that are forwarded.

Three machines have a clock and a node of each log; all logs have one primary, and commits reach its standby in their
order. Each text is of a virtual host, which is in exactly one log.
"""

import json
from random import Random

from replicated.memory import MemoryEngine, Server
from replicated.world import HEALING, SECONDS, SETTINGS, Host, Time, World, texts

from leveret.broker.replication import chain, engine as protocol
from leveret.broker.replication.moves import is_elsewhere
from leveret.broker.replication.node import Role

MOST_LOGS = 5
CLIENTS = 4
MADE = "made"
"""Text of the definition of a virtual host."""


class LogHost(Host):
    """A machine's node of one log."""

    def __init__(self, world, number):
        super().__init__(world, number)
        self.rate, self.offset = world.logs.clocks[number]
        self.served = {}
        """Virtual hosts by name, while this node leads: their ids."""

    def handle(self, event):
        super().handle(event)
        if type(event).__name__ == "Open":
            self.served = {
                name: id_
                for id_, text in self.copy.messages.items()
                for name, rest in [text.split(":")]
                if rest == MADE and not is_elsewhere(id_, self.node.moved)
            }

    # -- clients ----------------------------------------------------------------------------------------------------

    def load(self):
        few = not self.served or self.world.random.random() < 0.01
        if few and self.is_open and not self.world.is_over and self.node.may_answer(self.clock()):
            id_ = self.node.leader.epoch << 32 | self.world.logs.next_text()
            text = f"v{self.world.logs.next_text()}:{MADE}"
            ticket = self.node.submit(chain.Batch(json.dumps([id_, text]).encode(), ()))
            self.waiting[ticket] = text
            self.memory[id_] = text
        super().load()

    def publish(self, text, named):
        if self.served:
            self.publish_in(self.world.random.choice(sorted(self.served)), text, named)

    def publish_in(self, vhost, text, named=()):
        super().publish(f"{vhost}:{text}", named)

    def logged(self, ticket):
        text = self.waiting.get(ticket)
        super().logged(ticket)
        if isinstance(text, str) and text.endswith(f":{MADE}"):
            self.served[text.split(":")[0]] = next(
                id_ for id_, each in (*self.memory.items(), *self.copy.messages.items()) if each == text
            )

    def may_serve(self):
        """Return whether a client that was forwarded gets answers."""
        return self.node.may_answer(self.clock())

    def serve(self, vhost):
        """Take a request of a client that was forwarded here."""
        if not self.is_open or vhost not in self.served or not self.may_serve():
            return
        self.world.check_lease(self)
        if self.world.random.random() < 0.5:
            self.world.logs.check_read(self, vhost)
        elif not self.world.is_over:
            self.publish_in(vhost, str(self.world.logs.next_text()))


class Log(World):
    """One of several logs."""

    host_class = LogHost

    def __init__(self, logs, name, engine):
        self.logs = logs
        self.name = name
        super().__init__(logs.random, lambda: engine, logs.settings, logs.time)
        self.next_text = logs.next_text

    def copy_checked(self, source):
        """Take over what is known of the entries that are in this log from its beginning."""
        lease = self.engine.standby.lease
        self.log = {index: entry for index, entry in source.log.items() if index <= lease.last}
        self.logged_texts = {
            text: index for text, index in source.logged_texts.items() if index <= lease.last
        }
        self.ids = {id_ for entry in self.log.values() for id_, _ in texts(entry)}
        self.digests = {index: each for index, each in source.digests.items() if index <= lease.last}
        self.holders = {epoch: each for epoch, each in source.holders.items() if epoch <= lease.epoch}
        self.leaders = {epoch: each for epoch, each in source.leaders.items() if epoch <= lease.epoch}

    def has(self, vhost, epoch):
        """Return whether a virtual host is here, as entries of an epoch have it."""
        moved = [each for each in self.engine.standby.moved if each.epoch < epoch]
        return f"{vhost}:{MADE}" in self.logged_texts and not is_elsewhere(self.logs.made[vhost], moved)

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def finish(self, engine_life, work):
        super().finish(engine_life, work)
        self.logs.look()

    def go_wrong(self):
        leading = [
            each for each in self.hosts if each.is_up and each.node.role is Role.LEADING and each.served
        ]
        if leading and not self.is_over and self.random.random() < 0.2 and len(self.logs.logs) < MOST_LOGS:
            host = leading[0]
            vhost = self.random.choice(sorted(host.served))
            taken = self.random.choice(list(self.logs.logs))
            log = taken if self.random.random() < 0.1 else f"of {vhost}"
            host.node.hand_over("", protocol.Move(host.served[vhost], vhost, log))
            host.is_open = False
        super().go_wrong()

    def kill(self, host, *, wiped=False):
        """End a process, or a machine."""
        alone = self.random.random() < 0.5
        for each in [host] if alone else self.logs.on(host.name):
            World.kill(each.world, each, wiped=wiped)

    def end_of_engine(self):
        for each in self.logs.logs.values():
            World.end_of_engine(each)

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check_text(self, entry, id_, text):
        vhost, rest = text.split(":")
        if rest == MADE:
            assert vhost not in self.logs.made, f"{vhost} is in two logs"
            self.logs.made[vhost] = id_
        assert self.has(vhost, entry.epoch), f"{text} is in log {self.name}, which does not have {vhost}"

    def check_answered(self, host, text):
        super().check_answered(host, text)
        self.logs.answered.append(text)
        self.logs.last[text.split(":")[0]] = text

    def check_end(self):
        lease = self.engine.standby.lease
        self.answered = {text for text in self.logs.answered if self.has(text.split(":")[0], lease.epoch + 1)}
        super().check_end()


class Client:
    """A client that comes to any machine, from which it is forwarded to the node that has its virtual host."""

    def __init__(self, logs):
        self.logs = logs
        self.vhost = ""
        self.host = None
        self.life = 0
        logs.time.at(logs.random.uniform(1, 4), self.go)

    def go(self):
        logs = self.logs
        if logs.is_over:
            return
        host = self.host
        if host is None or not host.is_open or host.life != self.life or logs.random.random() < 0.02:
            self.find()
        if self.host is not None:
            self.host.later(logs.random.uniform(0.001, 0.01), self.host.serve, self.vhost)
        logs.time.at(logs.time.now + logs.random.uniform(0.01, 0.1), self.go)

    def find(self):
        """Be forwarded to the first of all nodes that opens the connection."""
        logs = self.logs
        hosts = [host for log in logs.logs.values() for host in log.hosts]
        logs.random.shuffle(hosts)
        self.vhost = logs.random.choice(list(logs.made)) if logs.made else ""
        self.host = next(
            (
                each
                for each in hosts
                if each.is_up
                and each.is_open
                and each.paused_until <= logs.time.now
                and self.vhost in each.served
            ),
            None,
        )
        if self.host is not None:
            self.life = self.host.life
            logs.forwarded += 1


class Logs:
    """All of it; the arguments are as those of `World`."""

    def __init__(self, seed, settings=SETTINGS):
        self.random = Random(seed)
        self.settings = settings
        self.time = Time()
        self.clocks = [(self.random.uniform(0.99, 1.01), self.random.uniform(0, 1000)) for _ in range(3)]
        self.server = Server()
        self._texts = 0
        self.made = {}
        """Id of each virtual host whose definition was replicated, by name."""
        self.answered = []
        self.last = {}
        """The last text of each virtual host that was answered."""
        self.forwarded = self.moved = 0
        self.is_over = False
        self.logs = {name: Log(self, name, MemoryEngine(server=self.server, log=name)) for name in ("a", "b")}
        self.clients = [Client(self) for _ in range(CLIENTS)]

    def next_text(self):
        """Return a number that is never the same."""
        self._texts += 1
        return self._texts

    def on(self, machine):
        """Return the nodes of a machine."""
        return [host for log in self.logs.values() for host in log.hosts if host.name == machine]

    def look(self):
        """Start the nodes of a log that has become durable."""
        for name, engine in list(self.server.logs.items()):
            if name not in self.logs:
                source = next(each for each in self.logs.values() if each.engine is engine.source)
                log = self.logs[name] = Log(self, name, engine)
                source.note_durable()
                log.copy_checked(source)
                log.is_over = self.is_over
                log.start()
                self.moved += 1
                self.check_places()

    def run(self):
        """As `World.run`."""
        for log in self.logs.values():
            log.start()
        self.time.run_until(SECONDS)
        self.is_over = True
        for log in self.logs.values():
            log.heal()
        deadline = SECONDS + HEALING
        while not all(log.is_well() for log in self.logs.values()):
            roles = {log.name: log.roles() for log in self.logs.values()}
            assert self.time.now < deadline, f"not well again: {roles}"
            self.time.run_until(self.time.now + 1)
        self.check_places()
        for log in self.logs.values():
            log.check_end()
        counts = {name: sum(log.counts[name] for log in self.logs.values()) for name in log.counts}
        return {**counts, "moved": self.moved, "forwarded": self.forwarded}

    def check_places(self):
        """Check that each virtual host is in exactly one log."""
        for vhost in self.made:
            found = [
                log.name for log in self.logs.values() if log.has(vhost, log.engine.standby.lease.epoch + 1)
            ]
            assert len(found) == 1, f"{vhost} is in {found}"

    def check_read(self, host, vhost):
        """Check that a client sees what was answered before."""
        known = {text.split("b")[0] for text in (*host.memory.values(), *host.copy.messages.values())}
        last = self.last.get(vhost)
        assert last is None or last in known, f"{host.name} of log {host.world.name} answered without {last}"
