"""The four invariants of the design, under schedules of loss, duplication, reordering and crashes.

ROG_SCHEDULES sets the number of schedules (default 150; `make soak` runs 10,000).
"""

import os

from fleet import Fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rog_core.worker import STOPPED

SCHEDULES = int(os.environ.get('ROG_SCHEDULES', '150'))

faults = st.lists(st.tuples(
    st.sampled_from(['run', 'kill', 'restart', 'cut', 'heal', 'checkpoint', 'crash']),
    st.integers(0, 3), st.floats(0.05, 1.5)), max_size=12)


def play(fleet, events):
    """Run the schedule and check invariants 1 to 3 after every step."""
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
        elif event == 'checkpoint':
            checkpoint = fleet.checkpoint()
        elif event == 'crash':
            fleet.restart_server(checkpoint)
        fleet.run(seconds)
        fleet.check()


@settings(max_examples=SCHEDULES, deadline=None, derandomize=SCHEDULES < 1000,
          suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2 ** 32), robots=st.integers(1, 4),
       sync=st.sampled_from(['bsp', 'ssp:0', 'ssp:2', 'asp', 'rsp:1', 'rsp:2', 'rsp:4', 'rsp:20']),
       codec=st.sampled_from(['onebit', 'raw']), loss=st.sampled_from([0.0, 0.05, 0.3]),
       duplicate=st.sampled_from([0.0, 0.2]), delay=st.sampled_from([0.001, 0.02, 0.2]), events=faults)
def test_invariants_hold_in_any_schedule(seed, robots, sync, codec, loss, duplicate, delay, events):
    fleet = Fleet(seed, robots, sync, codec, loss, duplicate, delay)
    play(fleet, events)
    # The faults end: everybody who lives must get on, whatever happened before.
    fleet.dead_links.clear()
    fleet.loss = 0.0
    fleet.run(8)
    before = fleet.server.iteration
    fleet.run(10)
    fleet.check()
    living = [r for r in fleet.robots.values() if r.alive]
    if living:
        assert fleet.server.iteration > before, 'the fleet stands still'
    # Invariant 4: after quiescence and draining, every worker holds the master rows.
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(30)
    assert fleet.stopped
    fleet.check_conservation()
    for robot in living:
        assert robot.machine.state == STOPPED
        assert (robot.store.weights == fleet.server.master).all()
    assert not fleet.errors, fleet.errors[0]
