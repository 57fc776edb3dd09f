"""Coded gradients in a fleet: each round counts exactly once when robots straggle, die or return.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from hostile import fingerprint
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rog_core.errors import ConfigError
from rog_core.methods.coded import Coded
from rog_core.protocol.messages import End
from rog_core.protocol.steps import Shards
from schedules import NETWORK, SCHEDULES, play, run_until

METHODS = ['gc', 'hgc:2', 'gcc:1:2', 'dcgc:1:2:1', 'dgh-gc:1:2:5']
CAPACITIES = (1.0, 1.0, 2.0, 1.0, 2.0, 2.0)


def coded(sync, seed=3, codec='raw', momentum=0.0, capacities=CAPACITIES, **network):
    return Fleet(seed, len(capacities), sync, codec, momentum=momentum, capacities=capacities,
                 **network)


def check_progress(fleet, seconds=12):
    """End all faults; check that every live robot makes progress and finally holds the master rows.
    """
    fleet.dead_links.clear()
    fleet.deaf_links.clear()
    fleet.loss, fleet.rate = 0.0, 1e6
    fleet.run(seconds)
    living = [robot for robot in fleet.robots.values() if robot.alive]
    assert {(m.robot, m.incarnation) for m in fleet.server.active()} == {
        (robot.name, robot.machine.incarnation) for robot in living}
    before = len(fleet.update.rounds), sum(robot.machine.iteration for robot in living)
    fleet.run(seconds)
    fleet.check()
    if living:
        assert sum(robot.machine.iteration for robot in living) > before[1], 'it stands still'
        assert len(fleet.update.rounds) > before[0] \
            or not isinstance(fleet.server.method, Coded)
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(30)
    assert fleet.stopped
    assert all((robot.store.weights == fleet.server.master).all() for robot in living)
    assert not fleet.errors, fleet.errors[0]


@pytest.mark.parametrize('sync', METHODS)
def test_every_round_counts_once_as_the_mean_of_all_shards(sync):
    """Check that no round is left out; `SummingAggregation.check_decoded` checks each gradient."""
    fleet = coded(sync, loss=0.05, duplicate=0.1, delay=0.1, rate=3e5)
    fleet.run(15)
    fleet.check()
    rounds = fleet.update.rounds
    assert len(rounds) > 4 and rounds == list(range(1, len(rounds) + 1))
    check_progress(fleet, 5)


@pytest.mark.long
@pytest.mark.parametrize('sync', METHODS)
def test_a_push_of_a_round_that_is_over_is_cut_short(sync):
    """The fleet does not wait for a robot that computes slowly or has a slow link."""
    fleet = coded(sync, rate=2e5)
    for robot in fleet.robots.values():
        robot.compute_time = 0.1
    carry, slow = fleet.carry, fleet.robots['robot1']

    def crawl(robot, towards_server, nbytes, deliver):
        carry(robot, towards_server, nbytes * (20 if robot == 'robot1' else 1), deliver)
    fleet.carry = crawl
    fleet.run(6)
    fleet.check()
    alone = slow.machine.iteration
    assert len(fleet.update.rounds) > 15
    assert fleet.server.members['robot1'].rows_pushed < fleet.partition.rows
    # The iteration of robot1 is near the newest round. If robot1 had finished its pushes of
    # rounds that were over, it would be further behind.
    assert alone > fleet.update.rounds[-1] - 15
    fleet.carry = carry
    check_progress(fleet, 5)


def slow_all_but(fleet, name):
    for robot in fleet.robots.values():
        robot.compute_time = 0.15 if robot.name != name else 1.0


def test_the_server_s_word_that_a_round_is_over_may_be_lost():
    """Lose receipts for robot1; check that the fleet then continues.

    Only a receipt tells a robot that the server has cut its push short.
    """
    fleet = coded('gc', rate=1e5)
    slow_all_but(fleet, 'robot1')
    machine, lost = fleet.robots['robot1'].machine, []
    deliver = fleet.deliver_to_robot

    def lossy(robot, message, server):
        early = robot.name == 'robot1' and machine.push is not None \
            and machine.push.state == 'sending' and type(message).__name__ == 'Receipt'
        if early and len(lost) < 3:
            lost.append(message)
        else:
            deliver(robot, message, server)
    fleet.deliver_to_robot = lossy
    fleet.run(8)
    assert len(lost) == 3
    check_progress(fleet, 5)


def test_what_was_not_sent_of_a_round_that_is_over_is_no_part_of_the_next():
    fleet = coded('gc', rate=1e5)
    slow_all_but(fleet, 'robot1')
    robot, cut = fleet.robots['robot1'], []
    on_receipt = robot.machine.on_receipt

    def spy(receipt, now):
        sending = robot.machine.push is not None and robot.machine.push.state == 'sending'
        out = on_receipt(receipt, now)
        if sending and robot.machine.state == 'waiting':
            cut.append(np.abs(robot.store.pending).max())
        return out
    robot.machine.on_receipt = spy
    run_until(fleet, lambda: len(cut) > 2, 0.1)
    assert not any(cut)


@pytest.mark.parametrize(('state', 'loses'), mostly_long(
    product(['computing', 'pushing', 'waiting', 'pulling'], ['the robot', 'the server']),
    ('computing', 'the server'), ('pushing', 'the robot'), ('pulling', 'the server')))
def test_a_robot_that_comes_back_brings_nothing_of_a_former_round(state, loses):
    # With gc:0 a round tolerates no straggler, so every robot contributes to every round.
    fleet = coded('gc:0', rate=2e5)
    fleet.run(3)
    machine = fleet.robots['robot1'].machine
    run_until(fleet, lambda: machine.state == state)
    if loses == 'the server':
        fleet.restart_server(fleet.checkpoint())
    else:
        fleet.dead_links.add('robot1')
        fleet.run(3)
        fleet.dead_links.clear()
    before = len(fleet.update.rounds)
    fleet.run(12)
    fleet.check()
    assert len(fleet.update.rounds) > before + 3
    assert len(fleet.server.active()) == len(CAPACITIES)


@pytest.mark.long
@pytest.mark.parametrize('sync', METHODS)
def test_more_die_than_the_code_tolerates_and_then_they_come_back(sync):
    fleet = coded(sync, loss=0.05)
    fleet.run(4)
    for name in ('robot0', 'robot2', 'robot3', 'robot5'):
        fleet.kill_robot(name)
    fleet.run(4)
    rounds = len(fleet.update.rounds)
    fleet.run(6)
    assert len(fleet.update.rounds) > rounds
    held = {shard for name in ('robot1', 'robot4')
            for shard in fleet.server.members[name].step.ids}
    assert held == set(range(fleet.server.members['robot1'].step.shards))
    for name in ('robot0', 'robot2', 'robot3', 'robot5'):
        fleet.start_robot(name)
    check_progress(fleet, 8)
    assert len({m.step for m in fleet.server.members.values() if isinstance(m.step, Shards)}) > 2


@pytest.mark.long
@pytest.mark.parametrize('sync', METHODS)
def test_a_server_that_was_restarted_goes_on_without_robots_that_died_meanwhile(sync):
    fleet = coded(sync)
    fleet.run(4)
    checkpoint = fleet.checkpoint()
    fleet.run(1)
    for name in ('robot0', 'robot2', 'robot3', 'robot5'):
        fleet.kill_robot(name)
    fleet.restart_server(checkpoint)
    check_progress(fleet, 10)


@pytest.mark.parametrize('former', ['gc', 'dgh-gc:1:2', 'rsp:4'])
@pytest.mark.parametrize('latter', mostly_long(
    ['hgc:0', 'asp', 'gsgm', 'bsp+svrg=2', 'rsp:6+pipeline', 'local:3'], 'asp', 'hgc:0'))
def test_gradients_under_way_never_count_for_the_other_method(former, latter):
    fleet = coded(former, rate=2e5)
    fleet.run(2)
    for seconds in (0.02, 0.11, 0.33):
        fleet.set_sync(latter)
        fleet.run(seconds)
        fleet.set_sync(former)
        fleet.set_sync(latter)
        fleet.run(1)
        fleet.check()
        fleet.set_sync(former)
        fleet.run(1)
        fleet.check()
    check_progress(fleet, 3)


def test_rows_that_a_former_method_left_behind_are_no_part_of_a_coded_gradient():
    fleet = coded('rsp:20', rate=3e4)
    for robot in fleet.robots.values():
        robot.compute_time = 0.1
    run_until(fleet, lambda: fleet.counts['partial'] > 5, 0.1)
    run_until(fleet, lambda: all(robot.machine.state == 'waiting' or robot.store.pending.any()
                                 for robot in fleet.robots.values()))
    assert any(robot.store.pending.any() for robot in fleet.robots.values())
    fleet.set_sync('gc:0')
    run_until(fleet, lambda: len(fleet.update.rounds) > 2, 0.1)
    check_progress(fleet, 4)


def test_what_is_computed_for_one_code_never_counts_for_another():
    """Check that no gradient computed for the old code counts after a change of the gradient code.

    The code changes before any robot has pushed in a round, so the round keeps its number.
    """
    fleet = coded('gc:0')
    fleet.run(3)
    for latter in ('hgc:0', 'gc:0', 'hgc:1'):
        run_until(fleet, lambda: all(
            robot.machine.state == 'computing' and robot.machine.iteration > fleet.server.iteration
            for robot in fleet.robots.values()))
        fleet.set_sync(latter)
        rounds = len(fleet.update.rounds)
        run_until(fleet, lambda: len(fleet.update.rounds) > rounds + 2, 0.1)
        fleet.check()


@pytest.mark.parametrize('feedback', ['', '-feedback'])
@pytest.mark.parametrize('codec', ['ternary:0.1', 'onebit'])
def test_a_lossy_codec_runs_with_and_without_feedback(codec, feedback):
    fleet = coded(f'dgh-gc:1:2:3{feedback}', codec=codec, momentum=0.5, loss=0.05, rate=1e5)
    fleet.run(12)
    fleet.check()
    residual = [np.abs(robot.store.pending).max() for robot in fleet.robots.values()
                if robot.machine.state in ('waiting', 'pulling')]
    assert all(bool(left) != bool(feedback) for left in residual), residual
    check_progress(fleet, 5)


def test_feedback_keeps_what_the_codec_leaves_out_and_only_that():
    """Check that no value is lost if no robot is late.

    The sum of the applied values and the values still on the robots equals the produced gradients.
    """
    fleet = coded('gc:0', codec='ternary:0.1', loss=0.05)
    fleet.run(10)
    held = sum(fleet.held(robot) for robot in fleet.robots.values())
    assert len(fleet.update.rounds) > 3
    assert np.allclose(fleet.update.applied + held, fleet.produced, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('chunks', [0, 100])
def test_an_end_that_leaves_rows_out_counts_for_nothing(chunks):
    """Check that the server does not decode a push that lacks rows.

    The test forges the End of this push, because a worker of this package never ends a coded push
    early.
    """
    fleet = coded('gc:0', rate=2e5)
    fleet.run(3)
    machine = fleet.robots['robot1'].machine
    run_until(fleet, lambda: machine.state == 'computing')
    last = fleet.server.members['robot1'].push.transfer
    transfer = replace(last, iteration=machine.iteration, attempt=last.attempt + 1)
    fleet.deliver_to_server('robot1', End(transfer, chunks, 0.1, 0.1))
    fleet.dead_links.add('robot1')  # robot1's own push of this iteration must not arrive
    fleet.run(4)
    fleet.dead_links.clear()
    check_progress(fleet, 6)


# -- bad input


def refuses(fleet, text, reason):
    """Check that `set_sync` refuses the text and changes nothing."""
    before, method = fingerprint(fleet.server), fleet.server.method
    with pytest.raises(ConfigError, match=reason):
        fleet.set_sync(text)
    assert fleet.server.method is method
    assert fingerprint(fleet.server) == before
    fleet.run(2)
    fleet.check()


def test_a_coded_method_needs_to_know_the_fleet():
    with pytest.raises(ConfigError, match="'gc' codes gradients for a fleet that is known"):
        Fleet(1, 2, 'gc')
    fleet = Fleet(1, 2, 'rsp:4')
    fleet.run(2)
    refuses(fleet, 'dgh-gc', 'give the server the robots of the fleet')


@pytest.mark.parametrize(('text', 'reason'), [
    ('gc:6', '6 stragglers'), ('gcc:1:4', 'do not make 4 groups'), ('dgh-gc:2', 'equation 13')])
def test_a_code_that_the_fleet_cannot_have_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason):
        coded(text)
    fleet = coded('gc')
    fleet.run(2)
    refuses(fleet, text, reason)


@pytest.mark.parametrize('sync', ['bsp', 'rsp:4', 'gsgm'])
def test_a_fleet_with_a_robot_that_is_not_in_the_code_keeps_its_method(sync):
    fleet = coded(sync)
    fleet.start_robot('stranger')
    fleet.run(3)
    refuses(fleet, 'gc', "'gc' codes only for its robots, robot0, .*, got 'stranger'")
    check_progress(fleet, 4)


# -- random schedules of faults

EVENTS = ['run', 'kill', 'restart', 'cut', 'heal', 'fade', 'slow', 'fast', 'sync', 'replay',
          'corrupt', 'checkpoint', 'crash']
SYNCS = [*METHODS, 'gc:0', 'rsp:4', 'gsgm', 'asp', 'rsp:4+pipeline', 'gsgm+svrg=3', 'local:3']


network = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in NETWORK.items()})
capacities = st.lists(st.sampled_from([1.0, 1.2, 1.5]), min_size=6, max_size=6)
schedules = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5), st.floats(0.05, 1.5)),
                     max_size=10)


@settings(max_examples=max(SCHEDULES // 10, 1), deadline=None, derandomize=SCHEDULES < 1000,
          suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2 ** 32), sync=st.sampled_from(METHODS), network=network,
       capacities=capacities, events=schedules)
def test_coded_rounds_hold_in_any_schedule(seed, sync, network, capacities, events):
    fleet = coded(sync, seed, capacities=capacities, **network)
    play(fleet, events, SYNCS, slow=2e4)
    check_progress(fleet, 10)
