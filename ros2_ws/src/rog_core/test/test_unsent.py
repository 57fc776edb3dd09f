"""What a robot had not sent when its process died comes back, and nothing of it counts twice."""

from dataclasses import replace

import numpy as np
import pytest
from fleet import Fleet
from rog_core.errors import LocalProtocolError, RemoteProtocolError
from rog_core.protocol.messages import Notice, RegisterResponse
from rog_core.server.taken import LIVES, Taken
from schedules import check_end, run_until, settled

SYNCS = ['bsp', 'asp', 'rsp:4', 'rsp:6+pipeline+sparse', 'gsgm', 'local:3', 'diloco:4:2',
         'rsp:4+local=8+momentum=0.5', 'trimmed:1']


def at(state, sync='rsp:4', **network):
    """A fleet whose first robot is in this state, and that robot."""
    fleet, _ = settled(sync=sync, **network)
    robot = fleet.robots['robot0']
    run_until(fleet, lambda: robot.machine.state == state)
    return fleet, robot


def back(fleet):
    """Wait until robot0 has registered; returns what it has brought back."""
    robot = fleet.robots['robot0']
    run_until(fleet, lambda: robot.machine.server and robot.machine.former is None)
    fleet.check()
    return robot.store.pending.copy()


@pytest.mark.parametrize('codec', ['onebit', 'raw', 'ternary'])
@pytest.mark.parametrize('state', ['computing', 'waiting', 'pulling'])
def test_between_two_pushes_nothing_is_lost(state, codec):
    fleet, robot = at(state, rate=2e4, codec=codec)
    held, momentum = robot.store.pending.copy(), robot.store.momentum.copy()
    fleet.save('robot0')
    fleet.reboot('robot0')
    assert (back(fleet) == held).all() and held.any()
    assert (fleet.robots['robot0'].store.momentum == momentum).all()
    check_end(fleet)


def test_during_a_push_what_has_arrived_stays_where_it_is():
    fleet, robot = at('pushing', rate=2e4)
    member = fleet.server.members['robot0']

    def has_arrived_in_part():
        push = robot.machine.push
        return push is not None and push.transfer == member.push.transfer \
            and member.push.is_open(push.transfer)
    run_until(fleet, has_arrived_in_part)
    fleet.save('robot0')
    saved = fleet.saves['robot0'][0]
    fleet.reboot('robot0')
    brought = back(fleet)
    assert brought.any() and saved.arrived
    assert fleet.counts['kept out'] == 1
    check_end(fleet)


@pytest.mark.parametrize('sync', SYNCS)
def test_it_comes_back_with_every_method(sync):
    fleet, _ = at('computing', sync, rate=2e4)
    fleet.save('robot0')
    fleet.reboot('robot0')
    back(fleet)
    assert fleet.counts['brought back'] == 1
    check_end(fleet)


def test_what_was_sent_after_the_save_does_not_come_again():
    fleet, _ = at('computing', 'bsp')
    fleet.save('robot0')
    reached = fleet.server.members['robot0'].iteration
    run_until(fleet, lambda: fleet.server.members['robot0'].iteration > reached + 1)
    fleet.reboot('robot0')
    assert not back(fleet).any()
    assert fleet.counts['kept out'] == 1


def test_a_save_may_be_used_again_for_what_is_still_not_sent():
    """The process that has brought it back dies before it has saved anything itself."""
    fleet, robot = at('waiting', rate=2e4)
    held = robot.store.pending.copy()
    fleet.save('robot0')
    for _ in range(3):
        fleet.reboot('robot0')
        assert (back(fleet) == held).all()
    robot = fleet.robots['robot0']
    run_until(fleet, lambda: robot.machine.state == 'pushing')
    run_until(fleet, lambda: robot.machine.state == 'waiting')
    fleet.reboot('robot0')
    assert (back(fleet) != held).any()
    check_end(fleet)


def test_a_server_that_starts_again_knows_what_its_checkpoint_holds():
    fleet, robot = at('waiting', rate=2e4)
    held = robot.store.pending.copy()
    fleet.save('robot0')
    checkpoint = fleet.checkpoint()
    run_until(fleet, lambda: robot.machine.state == 'computing')
    run_until(fleet, lambda: robot.machine.state == 'waiting')
    fleet.restart_server(checkpoint)  # it has forgotten this push, of which nothing is kept
    fleet.reboot('robot0')
    assert (back(fleet) == held).all()
    check_end(fleet)


def test_a_server_that_does_not_know_the_process_brings_nothing_back():
    fleet, _ = at('waiting')
    fresh = fleet.checkpoint()
    state = replace(fresh[0], taken={})
    fleet.save('robot0')
    fleet.restart_server((state, *fresh[1:]))
    fleet.reboot('robot0')
    assert not back(fleet).any()
    assert fleet.counts['dropped'] and not fleet.counts['brought back']
    check_end(fleet)


def test_a_process_whose_save_was_taken_over_may_not_come_back():
    """Its files were copied, say, so that two have them: what both hold would count twice."""
    fleet, former = at('waiting')
    request, = (action.message for action in former.machine.registration.register(fleet.now))
    fleet.save('robot0')
    fleet.reboot('robot0')
    back(fleet)
    fleet.kill_robot('robot0')
    fleet.run(3)
    answer, actions = fleet.server.on_register(replace(request, number=99), fleet.now)
    assert not answer.accepted and not answer.retry and not actions
    assert 'a later process of robot0 has taken over' in answer.reason


def test_what_comes_of_a_push_that_was_refused_does_not_come_back():
    fleet, robot = at('computing')
    fleet.server.pushes.plausibility.limit = 10
    fleet.server.pushes.plausibility.begin()
    fleet.run(10)
    run_until(fleet, lambda: robot.machine.state == 'waiting')
    fleet.exploding.add('robot0')
    run_until(fleet, lambda: robot.machine.state == 'pushing' and 'robot0' not in fleet.exploding)
    fleet.save('robot0')
    run_until(fleet, lambda: robot.machine.statistics.refused)
    fleet.reboot('robot0')
    assert not back(fleet).any()
    fleet.run(5)
    fleet.check()


def test_of_a_coded_gradient_nothing_is_saved():
    fleet = Fleet(3, 3, 'gc:1', capacities=(1, 1, 1))
    fleet.run(3)
    for name in fleet.robots:
        fleet.save(name)
    assert not fleet.saves


def test_a_save_of_before_a_coded_method_is_dropped():
    fleet, _ = at('computing', rate=2e4, capacities=(1, 1, 1))
    fleet.save('robot0')
    fleet.set_sync('gc:1')
    fleet.run(1)
    fleet.reboot('robot0')
    robot = fleet.robots['robot0']
    run_until(fleet, lambda: robot.machine.state == 'computing')
    assert not robot.store.pending.any()


@pytest.mark.parametrize('taken', [b'\0', b'\0' * 1000])
def test_an_answer_of_the_wrong_size_is_refused_and_nothing_has_changed(taken):
    fleet, _ = at('waiting')
    fleet.save('robot0')
    fleet.dead_links.add('robot0')
    fleet.reboot('robot0')
    robot = fleet.robots['robot0']
    with pytest.raises(RemoteProtocolError, match=f'got {len(taken)} bytes'):
        robot.machine.on_register_response(
            RegisterResponse(True, incarnation=5, attempt=1, taken=taken), fleet.now)
    assert robot.machine.state == 'registering' and not robot.machine.server
    assert robot.machine.former is not None
    fleet.dead_links.clear()
    back(fleet)
    assert fleet.counts['brought back'] == 1


def test_a_save_of_another_size_is_refused():
    fleet, robot = at('waiting')
    unsent = robot.machine.unsent()
    with pytest.raises(LocalProtocolError, match='elements'):
        robot.machine.take_over(replace(unsent, momentum=unsent.momentum[1:]))


def test_a_process_that_has_not_been_answered_yet_has_nothing_of_its_own_to_save():
    fleet, _ = at('waiting')
    fleet.save('robot0')
    fleet.dead_links.add('robot0')
    fleet.reboot('robot0')
    assert fleet.robots['robot0'].machine.unsent() is None


def test_people_are_told():
    fleet, robot = at('waiting')
    machine = robot.machine
    machine.take_over(machine.unsent())
    notice, = machine.registration.bring_back(bytes((machine.partition.segments + 7) // 8))
    assert isinstance(notice, Notice) and notice.robot == 'robot0'
    assert notice.what == 'brought_back' and '103 of 103 segments' in notice.detail


def test_the_server_remembers_a_bounded_number_of_processes_whatever_they_say():
    taken = Taken.nothing(3)
    for incarnation in range(1, 3 * LIVES):
        taken.begin(incarnation)
        taken.note(incarnation, 2 ** 32 - 1, np.array([1]))
        assert taken.since(incarnation, 2 ** 32 - 2) == b'\2'
        assert taken.since(incarnation, 2 ** 32 - 1) == b'\0'
    assert len(taken.lives) == LIVES
    assert taken.since(1, 0) == taken.since(10 ** 9, 0) == b''
    assert not taken.is_past(1)


def test_a_process_that_comes_back_hides_nothing_that_others_have_sent():
    taken = Taken.nothing(3)
    taken.begin(7)
    taken.note(7, 3, np.array([0]))
    taken.begin(8)
    taken.note(8, 5, np.array([0, 1]))
    taken.begin(7)
    taken.note(7, 4, np.array([0, 2]))
    assert taken.since(8, 4) == b'\3'
    assert taken.since(7, 3) == b'\7'
