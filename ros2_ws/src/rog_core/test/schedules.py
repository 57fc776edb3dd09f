"""Plays schedules of faults on a `Fleet`, and brings a fleet into the state that a test needs.

The environment variable ROG_SCHEDULES sets the number of schedules (default 80; `make soak` runs
10,000).
"""

import math
import os

from fleet import Fleet
from hypothesis import settings
from rog_core.codecs import codec_names
from rog_core.protocol.states import STOPPED

SCHEDULES = int(os.environ.get('ROG_SCHEDULES', 80 * settings().max_examples // 100))

SYNCS = ['bsp', 'ssp:0', 'ssp:2', 'asp', 'dssp:1:4', 'flown:1:6', 'ssp:2+early', 'rsp:1', 'rsp:2',
         'rsp:4', 'rsp:20', 'rsp:20+second', 'rsp:auto:2:8', 'rsp:4-early', 'rsp:3-order-minimum',
         'rsp:4+pipeline', 'rsp:6+pipeline+sparse', 'rsp:3+sparse',
         'rsp:auto:2:9+pipeline+sparse', 'gsgm', 'gsgm:3', 'local:3', 'diloco:3', 'diloco:6:3',
         'diloco:4:2+quorum=2+grace=0.3', 'rsp:4+local=3+rate=0.7+momentum=0.5',
         'rsp:6+pipeline+sparse+local=2',
         'trimmed:1']
EXACT = ['gsgm+svrg=3', 'asp+svrg=3', 'ssp:1+svrg=2']  # methods that need codec raw
CODECS = sorted(codec_names())
EVENTS = ['run', 'kill', 'restart', 'cut', 'heal', 'fade', 'gap', 'deaf', 'blackout', 'slow',
          'fast', 'sync', 'replay', 'corrupt', 'checkpoint', 'crash', 'pause', 'resume', 'hold',
          'go on']
# Seconds within which a robot with a good link is back: its attempts to register may have been
# lost, and the others may have waited for it for long (`Patience.until`).
BACK = 120.0
NETWORK = {'loss': [0.0, 0.05, 0.3], 'duplicate': [0.0, 0.2], 'delay': [0.001, 0.02, 0.2],
           'rate': [2e4, 1e5, 1e6], 'patience': [math.inf, 0.0, 0.6]}


def play(fleet, events, syncs=None, slow=5e3):
    """Play the schedule and check invariants 1 to 3 after every step.

    ``syncs``: methods to which the schedule changes; the default is all methods that work with the
    codec. ``slow``: rate of a slow link in bytes per second.
    """
    syncs = syncs or SYNCS + EXACT * (fleet.codec == 'raw')
    names = list(fleet.robots)
    checkpoint = fleet.checkpoint()
    for event, number, seconds in events:
        name = names[number % len(names)]
        if event == 'kill':
            fleet.kill_robot(name)
        elif event == 'restart':
            fleet.start_robot(name)
        elif event == 'cut':
            fleet.dead_links.add(name)
        elif event == 'heal':
            fleet.dead_links.discard(name)
        elif event == 'fade':
            fleet.fade(name, fleet.heartbeat_limit + seconds)
        # Cut the link for any time, from one lost message to several heartbeat limits.
        elif event == 'gap':
            fleet.fade(name, fleet.heartbeat_limit * seconds ** 3)
        elif event == 'deaf':
            fleet.fall_deaf(name, 2 * fleet.heartbeat_limit * seconds)
        elif event == 'blackout':
            fleet.black_out(names if number == 3 else [name], 100 * seconds)
        elif event == 'slow':
            fleet.rate = slow
        elif event == 'fast':
            fleet.rate = 1e6
        elif event == 'sync':
            fleet.set_sync(syncs[(number + int(100 * seconds)) % len(syncs)])
        elif event == 'replay':
            fleet.replay(10)
        elif event == 'corrupt':
            fleet.corrupt(20)
        elif event == 'checkpoint':
            checkpoint = fleet.checkpoint()
        elif event == 'crash':
            fleet.restart_server(checkpoint)
        elif event == 'pause':
            fleet.pause(name)
        elif event == 'resume':
            fleet.resume(name)
        elif event == 'hold':
            fleet.hold()
        elif event == 'go on':
            fleet.go_on()
        elif event == 'switch':
            fleet.switch(name, int(100 * seconds))
        fleet.run(seconds)
        fleet.check()


def check_end(fleet, seconds=12):
    """End all faults; check that every live robot makes progress and gets the final master rows."""
    fleet.dead_links.clear()
    fleet.deaf_links.clear()
    fleet.loss, fleet.rate = 0.0, 1e6
    fleet.go_on()
    for name in fleet.robots:
        fleet.resume(name)
    fleet.run(seconds / 3)
    living = [r for r in fleet.robots.values() if r.alive]
    until = fleet.now + BACK
    while {(member.robot, member.incarnation) for member in fleet.server.active()} != {
            (robot.name, robot.machine.incarnation) for robot in living}:
        assert fleet.now < until, 'a robot does not come back'
        fleet.run(1.0)
    before = sum(robot.machine.iteration for robot in living)
    until = fleet.now + seconds
    while living and sum(r.machine.iteration for r in living) <= before:
        assert fleet.now < until, 'the fleet stands still'
        fleet.run(0.5)
    fleet.check()
    # Invariant 4: when all transfers have ended, every worker holds the master rows.
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(30)
    assert fleet.stopped
    fleet.check_conservation()
    for robot in living:
        assert robot.machine.state == STOPPED
        assert (fleet.rows(robot.store.weights) == fleet.rows(fleet.server.master)).all()
        assert (robot.store.own == fleet.server.master[fleet.partition.buffers]).all()
        fleet.counts['final model checked'] += 1
    assert not fleet.errors, fleet.errors[0]
    assert fleet.counts['refused'] or not fleet.server.refused, 'a healthy push was refused'


# -- single faults, for tests that disconnect and reconnect robot0


def run_until(fleet, condition, step=2e-3):
    for _ in range(20_000):
        if condition():
            return
        fleet.run(step)
    raise AssertionError(f'it never came to that: {fleet.now:.3f} s, {dict(fleet.counts)}')


def state_of(fleet):
    """Return the state of robot0 in the server's view; None if the server does not know it."""
    member = fleet.server.members.get('robot0')
    return member and member.state


def settled(seed=4, sync='rsp:4', **network):
    """Return a fleet of three robots that train, and the member of robot0."""
    fleet = Fleet(seed, 3, sync, **network)
    run_until(fleet, lambda: len(fleet.server.active()) == 3)
    fleet.run(2)
    return fleet, fleet.server.members['robot0']


def lose(fleet, seconds=3.0):
    """Cut off robot0 until the server considers it away."""
    fleet.dead_links.add('robot0')
    fleet.run(seconds)
    assert state_of(fleet) == 'away'
    fleet.check()


def come_back(fleet):
    """Reconnect robot0; return the number of snapshot chunks that were sent."""
    before = fleet.counts['SNAPSHOT']
    fleet.dead_links.discard('robot0')
    run_until(fleet, lambda: state_of(fleet) == 'training')
    fleet.check()
    fleet.run(5)
    fleet.check()
    assert fleet.robots['robot0'].machine.state != 'registering'
    return fleet.counts['SNAPSHOT'] - before
