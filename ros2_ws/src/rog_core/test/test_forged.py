"""An attacker who reads all traffic forges messages; when the attack ends, the fleet continues.

Without a key nothing proves who has sent a message, so rows may be lost. But robot and server must
then agree again, without help, about which transfers are under way.
"""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from hostile import fingerprint
from rog_core.errors import RemoteProtocolError
from rog_core.patience import TIMES
from rog_core.protocol.messages import Command, End, Kind, Receipt, TransferId
from rog_core.protocol.states import DONE, OPEN, TRAINING
from schedules import run_until

LIMIT = 0.5   # heartbeat limit and patience, in seconds


class Deceived(Fleet):
    """A fleet that may lose rows, so it does not check their staleness."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, heartbeat_limit=LIMIT, patience=LIMIT, **kwargs)
        self.staleness.grants = self.staleness.pushes = lambda *_: None
        self.versions.applied = lambda *_: None
        for robot in self.robots.values():
            robot.compute_time = 0.1
        run_until(self, lambda: len(self.server.active()) == len(self.robots))
        self.run(2)

    def check_start(self, robot, iteration):
        """Check nothing, because this fleet may lose rows."""

    def iterations(self):
        return {name: robot.machine.iteration for name, robot in self.robots.items()}

    # -- messages that an attacker can forge from the traffic

    def session(self, name):
        return self.robots[name].machine.session

    def push_receipt(self, name, rng):
        push = self.robots[name].machine.push
        if push is not None and push.state != DONE:
            taken = bytes(rng.randrange(256) for _ in range((push._fresh + 7) // 8))
            self.deliver_to_robot(self.robots[name], Receipt(push.transfer, push._fresh, taken),
                                  self.server)

    def push_end(self, name, rng):
        member = self.server.members[name]
        transfer = TransferId(self.session(name), Kind.PUSH, member.granted,
                              self.following(member.push))
        self.deliver_to_server(name, End(transfer, rng.choice([0, 3]), 0.1, 0.1, Command()))

    def pull_end(self, name, rng):
        machine = self.robots[name].machine
        if machine.pull is not None:
            ahead = machine.iteration + rng.choice([0, 1, 7])
            transfer = TransferId(self.session(name), Kind.PULL, machine.iteration,
                                  self.following(machine.pull))
            self.deliver_to_robot(
                self.robots[name],
                End(transfer, 0, 0.1, 0.1, replace(machine.command, next_iteration=ahead + 1)),
                self.server)

    def pull_receipt(self, name, _):
        sender = self.server.members[name].sender
        if sender is not None:
            taken = np.packbits(np.zeros(sender._fresh, np.uint8)).tobytes()
            self.deliver_to_server(name, Receipt(sender.transfer, sender._fresh, taken))

    def following(self, receiver):
        last = receiver.transfer
        return receiver.floor if last is None else max(receiver.floor, last.attempt + 1)


FORGED = ['push_receipt', 'push_end', 'pull_end', 'pull_receipt']


def trains_again(fleet):
    fleet.run((TIMES + 5) * LIMIT)
    before, until = fleet.iterations(), fleet.now + 3
    while not all(now > before[name] + 5 for name, now in fleet.iterations().items()):
        assert fleet.now < until, (before, fleet.iterations())
        fleet.run(0.3)


@pytest.mark.parametrize('sync', mostly_long(
    ['rsp:4', 'rsp:6+pipeline+sparse', 'asp', 'gsgm', 'bsp'], 'rsp:4'))
@pytest.mark.parametrize(('what', 'state'), mostly_long(
    product(FORGED, ['computing', 'pushing', 'waiting', 'pulling']),
    ('push_receipt', 'pushing'), ('push_end', 'computing'), ('pull_end', 'waiting'),
    ('pull_end', 'pulling'), ('pull_receipt', 'pulling')))
def test_one_forged_message(sync, what, state):
    fleet = Deceived(3, 3, sync)
    worker = fleet.robots['robot0'].machine
    if sync != 'asp' or state != 'waiting':
        run_until(fleet, lambda: worker.state == state)
    getattr(fleet, what)('robot0', random.Random(1))
    trains_again(fleet)


@pytest.mark.long
@pytest.mark.parametrize('seed', range(20))
def test_a_stream_of_them(seed):
    rng = random.Random(seed)
    fleet = Deceived(seed, 3, rng.choice(['bsp', 'rsp:4', 'rsp:6+pipeline+sparse', 'asp', 'gsgm']))
    for _ in range(60):
        fleet.run(rng.uniform(0.0, 0.1))
        getattr(fleet, rng.choice(FORGED))(rng.choice(sorted(fleet.robots)), rng)
    trains_again(fleet)


def begun_again(fleet, member):
    """Check that the server refuses a second push while one is open: its rows could count twice."""
    opened = member.push.transfer
    for ahead in (1, 2):
        wrong = replace(opened, attempt=opened.attempt + ahead)
        before = fingerprint(fleet.server)
        with pytest.raises(RemoteProtocolError, match=f'after transfer {opened.attempt}, '):
            fleet.server.on_end('robot0', End(wrong, 0), fleet.now)
        assert fingerprint(fleet.server) == before


@pytest.mark.parametrize('sync', ['gsgm', 'bsp', 'rsp:4', 'bsp+svrg=3'])
def test_a_push_of_another_kind_than_was_granted_is_refused(sync):
    """Check that the server refuses a push whose kind differs from the kind that it granted.

    GSGM would not count a full gradient in a round, so the other robots would wait for ever.
    """
    fleet = Fleet(4, 3, sync, 'raw' if 'svrg' in sync else 'onebit')
    for robot in fleet.robots.values():
        robot.compute_time = 0.1
    server, seen = fleet.server, set()
    for _ in range(200):
        fleet.run(0.04)
        member = server.members.get('robot0')
        if member is None or member.state != TRAINING or member.push.state == OPEN:
            if member is not None and member.push.state == OPEN:
                begun_again(fleet, member)
            continue
        last, following = member.push.transfer, member.push.floor
        if last is not None:
            following = max(following, last.attempt + 1)
        granted = Kind.ANCHOR if member.step.uncompressed else Kind.PUSH
        other = Kind.PUSH if granted == Kind.ANCHOR else Kind.ANCHOR
        wrong = TransferId(member.push.incarnation, other, member.granted, following)
        before = fingerprint(server)
        with pytest.raises(RemoteProtocolError, match=f'must be {granted.name}, got'):
            server.on_end('robot0', End(wrong, 0), fleet.now)
        assert fingerprint(server) == before
        seen.add(granted)
    assert seen == ({Kind.PUSH, Kind.ANCHOR} if 'svrg' in sync else {Kind.PUSH})
    fleet.check()
    assert fleet.robots['robot0'].machine.iteration > 10, 'what was granted is taken'
