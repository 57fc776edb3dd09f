"""The four invariants of the design hold under loss, duplication, reordering and crashes.

The environment variable ROG_SCHEDULES sets the number of schedules; see `schedules`.
"""

import itertools
from collections import Counter

import pytest
from fleet import Fleet
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from rog_core.protocol.states import TABLES
from schedules import (
    CODECS,
    EVENTS,
    EXACT,
    NETWORK,
    SCHEDULES,
    SYNCS,
    check_end,
    play,
    run_until,
)
from watched import watched

network = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in NETWORK.items()})
schedules = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.floats(0.05, 1.5)),
                     max_size=12)

methods = st.tuples(st.sampled_from(SYNCS), st.sampled_from(CODECS)) \
    | st.tuples(st.sampled_from(EXACT), st.just('raw'))


# Do not shrink a failing example: shrinking would play hundreds of schedules, and the failing seed
# is enough to start debugging.
@settings(max_examples=SCHEDULES, deadline=None, derandomize=SCHEDULES < 1000,
          suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2 ** 32), robots=st.integers(1, 4), method=methods, network=network,
       events=schedules)
def test_invariants_hold_in_any_schedule(seed, robots, method, network, events):
    fleet = Fleet(seed, robots, *method, **network)
    try:
        with watched():  # check that the state tables contain all changes of state
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
              ('sync', 3, 1.0), ('gap', 0, 0.9), ('deaf', 1, 1.5), ('deaf', 0, 1.5),
              ('gap', 1, 0.5), ('pause', 0, 0.7), ('hold', 0, 1.5), ('resume', 0, 1.5),
              ('go on', 0, 1.5), ('pause', 1, 0.05), ('resume', 1, 0.5), ('run', 0, 1.5),
              ('blackout', 0, 0.5), ('run', 0, 1.5),
              ('corrupt', 0, 0.5), ('replay', 0, 0.5)]
MUST_HAPPEN = ['lost', 'duplicated', 'partial', 'crash that lost updates', 'kill', 'fade',
               'set_sync', 'replayed', 'stale', 'corrupt refused', 'twin fit', 'mirror checked',
               'mirror checked behind', 'conservation checked', 'versions checked',
               'staleness checked', 'model checked', 'compute', 'final model checked',
               'computed ahead', 'ternary', 'resumed', 'blackout', 'deaf', 'retired while pulling',
               'retired while training', 'returned', 'robot came back', 'server paused',
               'server went on']


@pytest.mark.parametrize('method', [
    'dssp:1:4', 'flown:1:6', 'rsp:auto:2:8', 'gsgm:3', 'diloco:4:2+quorum=2+grace=0.3',
    'trimmed:1'])
def test_a_retired_robot_that_must_stay_away_pushes(method):
    fleet = Fleet(1, 3, method, 'raw', patience=0.6)
    fleet.run(2.0)
    server, member = fleet.server, fleet.server.members['robot2']
    run_until(fleet, lambda: member.state == 'training')
    member.patience.retire(fleet.now, server.patience)
    member.patience.until = fleet.now + 4
    run_until(fleet, lambda: member.state != 'training')
    assert member.alive and member not in server.active()
    fleet.run(1.0)
    fleet.check()


@pytest.mark.long
def test_the_schedules_do_what_they_claim():
    """Check that the faults of the schedules occur, so that the invariants are really tested."""
    counts, seen = Counter(), set()
    syncs = itertools.cycle(['rsp:4', 'rsp:2', 'ssp:2', 'rsp:20+pipeline+sparse'])
    for seed, (sync, codec) in enumerate(zip(syncs, CODECS * 2, strict=False)):
        fleet = Fleet(seed, 3, sync, codec, loss=0.1, duplicate=0.1, rate=5e4, patience=0.6)
        # Keep a sparse method during the whole schedule, so that its behaviour is tested.
        keeps = 'sparse' in sync
        with watched() as changes:
            play(fleet, [event for event in EVERYTHING if not (keeps and event[0] == 'sync')])
            check_end(fleet)
        seen |= changes
        counts += fleet.counts
    assert not [name for name in MUST_HAPPEN if not counts[name]], counts
    missing = {(table.who, state) for table in TABLES for state in table.rows} - {
        (who, state) for who, *states in seen for state in states}
    assert not missing, 'the schedules never come there'


@pytest.mark.parametrize('defect', ['mirror', 'conservation', 'staleness', 'versions', 'model'])
def test_a_defect_is_noticed(defect):
    """Test the checks themselves: break each invariant on purpose, and expect an error."""
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
