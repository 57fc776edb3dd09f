"""Membership: who may join, what a restarted server remembers, and who is considered away."""

import re
from dataclasses import replace

import numpy as np
import pytest
from configs import SGD, server_config, transfer_config
from fleet import Fleet
from hostile import bad_commands, fingerprint
from rog_core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import (
    Ack,
    Chunk,
    Command,
    Compute,
    End,
    Kind,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Send,
    Sending,
    Stop,
    TransferId,
)
from rog_core.protocol.steps import Local
from rog_core.server.server import Server
from rog_core.transfer.link import MIN_CHUNK
from rog_core.worker.accumulator import Accumulator
from rog_core.worker.worker import Worker

SHAPES = [('w', (20, 60)), ('b', (8,))]
PARTITION = partition_of(SHAPES)


def server(**changes):
    return Server(PARTITION, np.ones(PARTITION.elements, np.float32), 50,
                  server_config(**changes))


def request(robot='robot1', incarnation=9, shapes=SHAPES, granularity='row', codec='onebit',
            **changes):
    partition = partition_of(shapes, granularity, 'onebit')
    parameters = tuple((p.name, p.shape, int(p.role)) for p in partition.listing.parameters)
    return replace(RegisterRequest(robot, incarnation, 0, 0, granularity, codec, partition.digest,
                                   parameters), **changes)


def worker():
    store = Accumulator(PARTITION, np.zeros(PARTITION.elements, np.float32))
    return Worker('robot1', 9, store, transfer_config())


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_model_that_is_not_finite_is_refused_by_its_parameter(value):
    master = np.ones(PARTITION.elements, np.float32)
    master[-1] = value
    with pytest.raises(ConfigError, match=r'parameter b \(8\) of the model holds NaN or infinite'):
        Server(PARTITION, master, 50, server_config())


REFUSED = {
    'protocol': (request(protocol=1),
                 'speaks protocol 1, this server 9; install the same version'),
    'codec': (request(codec='raw'), "has codec 'raw', this server 'onebit'"),
    'shape': (request(shapes=[('w', (20, 61)), ('b', (8,))]),
              r'parameter 0 is w \(20x61\) here but w \(20x60\) there \(here: robot1'),
    'name': (request(shapes=[('w', (20, 60)), ('c', (8,))]), r'parameter 1 is c \(8\) here but b'),
    'missing': (request(shapes=[('w', (20, 60))]), r'1 parameters here but 2 there.*is b \(8\)'),
    'granularity': (request(granularity='layer'), "granularity is 'layer' here but 'row' there"),
    'unknown granularity': (replace(request(), granularity='tile'), "is 'tile' here but 'row'"),
    'digest': (request(digest='0' * 64), 'digest does not match the listed parameters'),
    'empty parameter': (replace(request(), parameters=(('w', (0, 3), 0),)),
                        r'w \(0x3\) here but w'),
    'negative': (replace(request(), parameters=(('w', (-20, 60), 0), ('b', (8,), 0))),
                 r'w \(-20x60\)'),
    'huge': (replace(request(), parameters=(('w', (1 << 40, 1 << 20), 0), ('b', (8,), 0))),
             r'w \(1099511627776x1048576\) here but w \(20x60\)'),
    'huge element': (replace(request(), parameters=(('w', (1 << 50, 60), 0),),
                             granularity='element'),
                     "granularity is 'element' here"),
    'too many': (replace(request(), parameters=tuple((f'p{k}', (8,), 0) for k in range(50_000))),
                 r'p0 \(8\) here but w'),
    'a long name': (replace(request(), parameters=(('w\n' * 10 ** 6, (20, 60), 0),)),
                    r'w\?w\?.*\.\.\. \(20x60\) here but w'),
    'a long codec': (request(codec='x' * 10 ** 6), "codec 'xxx"),
}


@pytest.mark.parametrize('name', REFUSED)
def test_a_robot_that_does_not_fit_is_refused_for_good_and_nothing_changes(name):
    wrong, reason = REFUSED[name]
    machine = server()
    response, actions = machine.on_register(wrong, 0.0)
    assert not response.accepted
    assert not response.retry
    assert re.search(reason, response.reason), response.reason
    assert response.reason.isprintable() and len(response.reason) < 600
    assert actions == []
    assert machine.members == {}


def test_a_second_robot_of_the_same_name_is_refused_until_the_first_is_silent():
    machine = server()
    assert machine.on_register(request(), 0.0)[0].accepted
    first = machine.members['robot1']
    machine.on_heartbeat('robot1', 9, 5.0)
    response, actions = machine.on_register(request(incarnation=10), 6.0)
    assert (response.accepted, response.retry, actions) == (False, True, [])
    assert "named 'robot1' is alive (heard 1.0 s ago)" in response.reason
    assert machine.members['robot1'] is first
    machine.on_time(8.0)
    response, actions = machine.on_register(request(incarnation=10), 8.0)
    assert response.accepted
    assert machine.is_member('robot1', 10)
    assert not machine.is_member('robot1', 9)


def test_the_end_does_not_wait_for_a_robot_that_still_receives_its_first_model():
    machine = server()
    machine.config = replace(machine.config, drain_limit=1.0)
    machine.on_register(request(), 0.0)
    assert not any(isinstance(action, Stop) for action in machine.stop(0.5))
    machine.on_heartbeat('robot1', 9, 1.4)
    assert machine.deadline <= 1.5
    notice, stop = (a for a in machine.on_time(1.5) if not isinstance(a, Send))
    assert (notice.robot, notice.what, stop) == ('robot1', 'given_up', Stop())


def test_a_repeated_request_gets_the_same_answer_and_no_second_snapshot():
    machine = server()
    first, actions = machine.on_register(request(), 0.0)
    assert any(isinstance(a.message, Chunk) for a in actions)
    again, more = machine.on_register(request(), 0.5)
    assert again == first
    assert more == []


def test_a_snapshot_travels_in_datagrams_however_long_the_rows_are():
    shapes = [('long', (4, 9001))]
    partition = partition_of(shapes)
    machine = Server(partition, np.ones(partition.elements, np.float32), 50,
                     server_config())
    _, actions = machine.on_register(request(shapes=shapes), 0.0)
    sizes = [a.message.ids.size + a.message.values.size for a in actions]
    assert sizes
    assert max(sizes) <= MIN_CHUNK


def test_a_robot_that_is_not_in_the_code_is_refused_for_good():
    machine = server(sync='gc', capacities={'robot1': 1.0, 'robot2': 2.0})
    response, actions = machine.on_register(request('robot3'), 0.0)
    assert (response.accepted, response.retry, actions) == (False, False, [])
    assert response.reason == "'gc' codes only for its robots, robot1, robot2, got 'robot3'"
    assert machine.members == {}
    assert machine.on_register(request('robot2'), 0.0)[0].accepted


def test_nobody_joins_a_fleet_that_stops():
    machine = server()
    assert machine.stop(0.0) == [Stop()]
    response, _ = machine.on_register(request(), 0.0)
    assert (response.accepted, response.retry, response.over) == (False, False, True)
    assert 'stopping' in response.reason


def test_a_robot_that_comes_too_late_ends_cleanly_as_does_one_that_was_given_up_at_the_end():
    over = RegisterResponse(False, 'the run is over', over=True)
    late = worker()
    late.start(0.0)
    assert late.on_register_response(over, 0.1) == [Stop()]
    given_up = worker()
    given_up.start(0.0)
    given_up.on_register_response(RegisterResponse(True, incarnation=7), 0.1)
    for now in range(10):
        given_up.on_server_status(7, False, now)
    assert given_up.on_register_response(over, 10.0) == [Stop()]


def test_a_silent_member_is_away_and_one_that_beats_is_not():
    machine = server()
    machine.on_register(request(), 0.0)
    machine.on_register(request('robot2', 10), 0.0)
    machine.on_heartbeat('robot2', 10, 2.0)
    # Incarnation 8 is a former process of the robot, so the server ignores this heartbeat.
    machine.on_heartbeat('robot1', 8, 2.0)
    assert machine.deadline <= 3.0
    machine.on_time(3.0)
    assert not machine.is_member('robot1', 9)
    assert machine.is_member('robot2', 10)


def test_messages_of_unknown_robots_are_ignored():
    machine = server()
    transfer = TransferId(9 ^ 50, Kind.PUSH, 1, 1)
    assert machine.on_end('nobody', End(transfer, 0), 0.0) == []
    assert machine.on_heartbeat('nobody', 9, 0.0) == []
    assert machine.on_leave('nobody', 9, 0.0) == []
    assert not machine.is_member('nobody', 9)


def test_an_unknown_method_is_refused_and_the_old_one_stays():
    machine = server()
    with pytest.raises(ConfigError, match="'fast' is unknown"):
        machine.set_sync('fast', 0.0)
    assert str(machine.method) == 'rsp:4'
    machine.set_sync('ssp:2', 0.0)
    assert str(machine.method) == 'ssp:2'


def let_train(machine, asks):
    """Register a robot; acknowledge the server's messages to it until it may compute."""
    member_of, now = machine.members, 0.0
    _, actions = machine.on_register(asks, now)
    while member_of[asks.robot].state != 'training':
        now += 0.01
        assert actions and now < 1, 'the server has nothing to say'
        packets = [a.message.packet for a in actions if isinstance(a.message, Chunk)]
        message = actions[-1].message
        if isinstance(message, Chunk):
            actions = machine.on_ack(asks.robot, Ack(
                max(packets), 2 ** 64 - 1, now, message.transfer.incarnation), now)
        else:
            taken = np.packbits(np.ones(message.chunks, bool), bitorder='little').tobytes()
            receipt = Receipt(message.transfer, message.chunks, taken)
            actions = machine.on_receipt(asks.robot, receipt, now)


def test_a_push_that_overtakes_the_receipt_of_the_pull_waits_for_it():
    machine = server()
    member, actions = None, machine.on_register(request(), 0.0)[1]
    while member is None or member.state != 'pulling':
        message = actions[-1].message
        if isinstance(message, Chunk):
            packets = [a.message.packet for a in actions if isinstance(a.message, Chunk)]
            actions = machine.on_ack('robot1', Ack(max(packets), 2 ** 64 - 1, 0.01, 9 ^ 50), 0.01)
        else:
            taken = np.packbits(np.ones(message.chunks, bool), bitorder='little').tobytes()
            actions = machine.on_receipt(
                'robot1', Receipt(message.transfer, message.chunks, taken), 0.02)
        member = machine.members['robot1']
    pull, push = member.sender.transfer, TransferId(9 ^ 50, Kind.PUSH, 1, 1)
    values = np.array([128, 63, 1], np.uint8)
    assert not machine.on_end('robot1', End(push, 1, whole=True), 0.1)
    assert not machine.on_chunk('robot1', Chunk(push, 0, 1, 1, np.array([20], np.uint8), values,
                                                3), 0.1)
    with pytest.raises(RemoteProtocolError, match='chunks in an end'):
        machine.on_end('robot1', End(push, 10 ** 9), 0.1)
    chunks = member.sender._fresh
    taken = np.packbits(np.ones(chunks, bool), bitorder='little').tobytes()
    sent = [a.message for a in machine.on_receipt('robot1', Receipt(pull, chunks, taken), 0.2)]
    assert Ack(3, 0, 0.2, 9 ^ 50) in sent and Receipt(push, 1, b'\1') in sent
    assert member.iteration == 1


def test_a_checkpoint_brings_back_the_strategy_state():
    machine = server()
    let_train(machine, request())
    transfer = TransferId(9 ^ 50, Kind.PUSH, 1, 1)
    # An encoded row of 8 elements: the scale is 1.0 (two bytes), and only element 0 is negative.
    values = np.array([128, 63, 1] * 1, np.uint8)
    machine.on_chunk('robot1', Chunk(transfer, 0, 1, 1, np.array([20], np.uint8), values), 0.1)
    machine.on_end('robot1', End(transfer, 1), 0.2)
    machine.set_sync('rsp:7', 0.3)
    state = machine.checkpoint()
    restarted = server()
    restarted.load_state(state)
    assert restarted.iteration == 1
    assert str(restarted.method) == 'rsp:7'
    assert restarted.updated_at.tolist() == [0] * 20 + [1]
    response, _ = restarted.on_register(request(attempt=1), 0.0)
    assert response.push == machine.members['robot1'].push.receipt
    assert response.push.taken == b'\1'
    other, _ = restarted.on_register(request('robot2', 11), 0.0)
    assert other.push is None
    assert restarted.checkpoint().pushes == state.pushes


def test_a_checkpoint_of_another_model_is_refused():
    state = replace(server().checkpoint(), updated_at=np.zeros(5, np.int64))
    with pytest.raises(ConfigError, match='model has 5 rows; this one has 21'):
        server().load_state(state)


# -- the worker's side


def test_a_refused_worker_stops_with_the_server_s_reason():
    machine = worker()
    machine.start(0.0)
    response = RegisterResponse(False, 'another model')
    assert machine.on_register_response(response, 0.1) == [Stop('another model')]
    assert machine.deadline == np.inf


def test_a_worker_asks_again_with_growing_pauses_until_it_is_answered():
    machine = worker()
    machine.start(0.0)
    times = []
    for _ in range(8):
        times.append(machine.deadline)
        assert machine.on_time(times[-1] - 1e-3) == []
        action, = machine.on_time(times[-1])
        assert isinstance(action, Send)
    assert times[:5] == [1, 3, 7, 15, 31]
    assert np.diff(times).max() == 32


def test_a_worker_that_must_wait_for_its_name_asks_every_second():
    machine = worker()
    machine.start(0.0)
    for now in (1.0, 3.0, 7.0):
        machine.on_time(now)
    assert machine.on_register_response(RegisterResponse(False, 'alive', retry=True), 7.1) == []
    assert machine.deadline == pytest.approx(8.1)


def joined():
    """Return a worker that the server has just admitted, and the session of the worker."""
    machine = worker()
    machine.start(0.0)
    response = RegisterResponse(True, incarnation=50, attempt=1, sync='rsp:4')
    machine.on_register_response(response, 0.1)
    assert machine.state == 'joining'
    return machine, machine.session


GOOD = Command(1, 0.1, 0, 'rsp:4')


@pytest.mark.parametrize(('command', 'reason'), [
    (Command(0, 0.1, 0, 'rsp:4'), 'at least 1, got 0'),
    (Command(1, float('nan'), 0, 'rsp:4'), 'MTA time in .* got nan'),
    (Command(1, -1.0, 0, 'rsp:4'), 'MTA time in .* got -1'),
    (Command(1, 0.1, 0, 'rsp:4', patience=float('nan')), 'patience in .* got nan'),
    (Command(1, 0.1, 0, 'rsp:4', patience=-0.5), 'patience in .* got -0.5'),
    (Command(1, 0.1, sending=Sending(threshold=-2)), 'threshold in .* got -2'),
    (Command(1, 0.1, sending=Sending(1.5)), 'minimum in .* got 1.5'),
    (Command(1, 0.1, sending=Sending(mta=-0.1)), 'MTA in .* got -0.1'),
    (Command(1, 0.1, step=Local(0)), 'local steps must be .* got 0'),
    *((command, None) for command in bad_commands(GOOD).values())])
def test_a_command_that_cannot_be_followed_is_refused_and_the_transfer_stays_open(command, reason):
    machine, session = joined()
    end = End(TransferId(session, Kind.PULL, 0, 1), 0, command=command)
    before = fingerprint(machine)
    with pytest.raises(RemoteProtocolError, match=reason):
        machine.on_end(end, 0.2)
    assert fingerprint(machine) == before
    assert (machine.state, machine.sync) == ('joining', 'rsp:4')
    good = replace(end, command=Command(3, 0.1, 0, 'ssp:2'))
    assert len(machine.on_end(good, 0.3)) == 2
    assert (machine.state, machine.iteration, machine.sync) == ('computing', 3, 'ssp:2')


def test_a_worker_joins_a_fleet_whose_method_it_has_never_heard_of():
    """Check that a worker needs only the plain values of a command, not the method's class."""
    machine = worker()
    machine.start(0.0)
    machine.on_register_response(
        RegisterResponse(True, incarnation=50, attempt=1, sync='their.own:Method'), 0.1)
    assert (machine.state, machine.server, machine.sync) == ('joining', 50, 'their.own:Method')
    command = Command(1, 0.1, 0, 'their.own:Method', step=Local(2))
    pull = TransferId(machine.session, Kind.PULL, 0, 1)
    assert machine.on_end(End(pull, 0, command=command), 0.2)[-1] == Compute(1, Local(2))
    assert machine.report(0.3).sync == 'their.own:Method'


@pytest.mark.parametrize('command', [Command(1, 0.1), Command(stop=True)])
def test_what_comes_after_a_worker_has_left_is_ignored(command):
    machine, session = joined()
    machine.leave(0.15)
    kind = Kind.FINAL if command.stop else Kind.PULL
    actions = machine.on_end(End(TransferId(session, kind, 0, 1), 0, command=command), 0.2)
    assert all(isinstance(action, Send) for action in actions)
    assert machine.state == 'stopped'


@pytest.mark.parametrize('command', [Command(1, 0.1), Command(stop=True)])
def test_rows_of_a_pull_that_is_over_are_answered_by_its_receipt_which_was_lost(command):
    machine, session = joined()
    kind = Kind.FINAL if command.stop else Kind.PULL
    transfer, nothing = TransferId(session, kind, 0, 1), np.empty(0, np.uint8)
    receipt, *_ = machine.on_end(End(transfer, 0, command=command), 0.2)
    acknowledged, again = machine.on_chunk(Chunk(transfer, 0, 0, 0, nothing, nothing, 7), 0.3)
    assert acknowledged.message == Ack(7, 0, 0.3, session) and again == receipt


def test_a_worker_joins_again_when_the_server_says_twice_that_it_is_unknown():
    machine, _ = joined()
    assert machine.on_server_status(50, True, 0.2) == []
    assert machine.on_server_status(50, False, 0.3) == []
    assert machine.on_server_status(50, True, 0.4) == []
    assert machine.on_server_status(51, True, 0.5) == []
    action, = machine.on_server_status(51, True, 0.6)
    assert isinstance(action.message, RegisterRequest)
    assert machine.state == 'registering'


def test_a_gradient_that_nobody_asked_for_is_the_caller_s_fault():
    machine, _ = joined()
    with pytest.raises(LocalProtocolError, match='without a Compute'):
        machine.on_gradient(np.zeros(PARTITION.elements, np.float32), SGD, 0.2)


def test_weights_of_another_size_are_the_caller_s_fault():
    with pytest.raises(ValueError, match='weights have 3 elements; the partition has 1208'):
        Accumulator(PARTITION, np.zeros(3, np.float32))


def test_a_link_too_slow_for_the_final_model_ends_the_run_all_the_same():
    fleet = Fleet(seed=6, robots=2, sync='rsp:3', rate=20e3)
    fleet.run(5)
    fleet.server.config = replace(fleet.server.config, drain_limit=0.1)
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(20)
    assert fleet.stopped
    for name, robot in fleet.robots.items():
        assert robot.machine.state == 'stopped'
        # Rows that arrived in time have the values of the final model. For the other rows, the
        # server's mirror still has the robot's values.
        same = robot.store.weights == fleet.server.master
        assert same.any() and not same.all()
        assert (robot.store.weights == fleet.server.members[name].mirror.rows).all()
