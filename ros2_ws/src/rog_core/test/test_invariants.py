"""The four invariants of the design, under schedules of loss, duplication, reordering and crashes.

ROG_SCHEDULES sets the number of schedules (default 80; `make soak` runs 10,000).
"""

import os
from collections import Counter

import pytest
from fleet import Fleet
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from rog_core.worker import STOPPED

SCHEDULES = int(os.environ.get('ROG_SCHEDULES', '80'))

SYNCS = ['bsp', 'ssp:0', 'ssp:2', 'asp', 'dssp:1:4', 'flown:1:6', 'ssp:2+early', 'rsp:1', 'rsp:2',
         'rsp:4', 'rsp:20', 'rsp:20+second', 'rsp:auto:2:8', 'rsp:4-early', 'rsp:3-order-minimum',
         'rsp:4+pipeline', 'rsp:6+pipeline+sparse', 'rsp:3+sparse',
         'rsp:auto:2:9+pipeline+sparse', 'gsgm', 'gsgm:3']
EXACT = ['gsgm+svrg=3', 'asp+svrg=3', 'ssp:1+svrg=2']  # with codec raw only
CODECS = ['onebit', 'raw', 'ternary', 'ternary:0.1']
EVENTS = ['run', 'kill', 'restart', 'cut', 'heal', 'fade', 'blackout', 'slow', 'fast', 'sync',
          'replay', 'corrupt', 'checkpoint', 'crash']
NETWORK = {'loss': [0.0, 0.05, 0.3], 'duplicate': [0.0, 0.2], 'delay': [0.001, 0.02, 0.2],
           'rate': [2e4, 1e5, 1e6]}


def play(fleet, events, syncs=None, slow=5e3):
    """Run the schedule and check invariants 1 to 3 after every step.

    ``syncs``: methods to change to, by default all that go with the codec. ``slow``: bytes/s.
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
        fleet.run(seconds)
        fleet.check()


def check_end(fleet, seconds=12):
    """The faults end: everybody who lives must get on, and at the end hold the master rows."""
    fleet.dead_links.clear()
    fleet.loss, fleet.rate = 0.0, 1e6
    fleet.run(seconds)
    living = [r for r in fleet.robots.values() if r.alive]
    active = {(member.robot, member.incarnation) for member in fleet.server.active()}
    assert active == {(robot.name, robot.machine.incarnation) for robot in living}
    before = sum(robot.machine.iteration for robot in living)
    fleet.run(seconds)
    fleet.check()
    assert not living or sum(r.machine.iteration for r in living) > before, 'the fleet stands still'
    # Invariant 4: after quiescence and draining, every worker holds the master rows.
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(30)
    assert fleet.stopped
    fleet.check_conservation()
    for robot in living:
        assert robot.machine.state == STOPPED
        assert (robot.store.weights == fleet.server.master).all()
        fleet.counts['final model checked'] += 1
    assert not fleet.errors, fleet.errors[0]


network = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in NETWORK.items()})
schedules = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.floats(0.05, 1.5)),
                     max_size=12)

methods = st.tuples(st.sampled_from(SYNCS), st.sampled_from(CODECS)) \
    | st.tuples(st.sampled_from(EXACT), st.just('raw'))


# No shrinking: it plays hundreds of schedules, and a seed that fails is as good a start.
@settings(max_examples=SCHEDULES, deadline=None, derandomize=SCHEDULES < 1000,
          suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2 ** 32), robots=st.integers(1, 4), method=methods, network=network,
       events=schedules)
def test_invariants_hold_in_any_schedule(seed, robots, method, network, events):
    fleet = Fleet(seed, robots, *method, **network)
    try:
        play(fleet, events)
        check_end(fleet)
    finally:
        note(f'at {fleet.now:.3f} s; {dict(fleet.counts)}')
        for member in fleet.server.members.values():
            note(f'server: {member.robot} {member.state} iteration {member.iteration} slowest '
                 f'{member.slowest} waits for {member.waiting_for}')
        for robot in fleet.robots.values():
            note(f'{robot.name}: alive {robot.alive} {robot.machine.state} iteration '
                 f'{robot.machine.iteration}')


EVERYTHING = [('run', 0, 1.0), ('checkpoint', 0, 0.5), ('crash', 0, 1.5), ('sync', 1, 1.0),
              ('fade', 1, 1.5), ('run', 0, 1.5), ('slow', 0, 1.5), ('replay', 0, 0.5),
              ('corrupt', 0, 0.3), ('kill', 2, 1.5), ('restart', 2, 1.5), ('fast', 0, 1.0),
              ('sync', 3, 1.0), ('blackout', 0, 0.5), ('run', 0, 1.5), ('corrupt', 0, 0.5),
              ('replay', 0, 0.5)]
MUST_HAPPEN = ['lost', 'duplicated', 'partial', 'crash that lost updates', 'kill', 'fade',
               'set_sync', 'replayed', 'stale', 'corrupt refused', 'mirror checked',
               'mirror checked behind', 'conservation checked', 'versions checked',
               'staleness checked', 'model checked', 'compute', 'final model checked',
               'computed ahead', 'ternary', 'resumed', 'blackout']


def test_the_schedules_do_what_they_claim():
    """No invariant above holds for want of anything to break it."""
    counts: Counter = Counter()
    for seed, sync in enumerate(['rsp:4', 'rsp:2', 'ssp:2', 'rsp:20+pipeline+sparse']):
        for codec in CODECS:
            fleet = Fleet(seed, 3, sync, codec, loss=0.1, duplicate=0.1, rate=5e4)
            keeps = 'sparse' in sync  # its method, so that it does what only this one does
            play(fleet, [event for event in EVERYTHING if not (keeps and event[0] == 'sync')])
            check_end(fleet)
            counts += fleet.counts
    assert not [name for name in MUST_HAPPEN if not counts[name]], counts


@pytest.mark.parametrize('defect', ['mirror', 'conservation', 'staleness', 'versions', 'model'])
def test_a_defect_is_noticed(defect):
    """The checks themselves are alive: each invariant, broken by hand, is reported."""
    fleet = Fleet(5, 2, 'rsp:3')
    fleet.run(2.0)
    fleet.check()
    while not (training := [m for m in fleet.server.active() if m.state == 'training']):
        fleet.run(0.01)
    member = training[0]
    if defect == 'mirror':
        member.mirror.rows[3] += 1
    elif defect == 'conservation':
        fleet.robots['robot1'].store.pending[5] += 1
    elif defect == 'versions':
        member.versions[:] += 1
    with pytest.raises(AssertionError):
        if defect == 'staleness':
            fleet.check_start(fleet.robots['robot0'], member.slowest + 4)
        elif defect == 'model':
            fleet.robots[member.robot].store.model[7] += 1
            fleet.run(5.0)
        fleet.check()
