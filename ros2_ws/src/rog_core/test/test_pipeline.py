"""Pipelining computes the next gradient while rows travel, and has no other effect."""

from dataclasses import replace

import numpy as np
import pytest
from configs import SGD, transfer_config
from fleet import Fleet
from rog_core.errors import RemoteProtocolError
from rog_core.methods import create
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import (
    Ack,
    Chunk,
    Command,
    Compute,
    End,
    Kind,
    Receipt,
    RegisterResponse,
    Send,
    TransferId,
)
from rog_core.worker.accumulator import Accumulator
from rog_core.worker.worker import Worker

PARTITION = partition_of([('w', (20, 60)), ('b', (8,))], codec='raw')
EVERY = np.arange(PARTITION.segments, dtype=np.int64)
SERVER = 50


class Robot:
    """A worker for which the test plays the server.

    ``log``: the names of the gradients, in the order in which they were accumulated.
    """

    def __init__(self, sync):
        weights = np.zeros(PARTITION.elements, np.float32)
        self.store = Accumulator(PARTITION, weights)
        self.machine = Worker('robot1', 9, self.store, transfer_config('raw'))
        self.method, self.attempt, self.sent = create(sync), 0, []
        self.log, self.gradients = [], {}  # maps the name of a gradient to its values
        self.store.accumulate = self.noting(self.store.accumulate)
        self.machine.start(0.0)
        self.machine.on_register_response(
            RegisterResponse(True, incarnation=SERVER, attempt=1, sync=sync), 0.1)

    def noting(self, accumulate):
        def note(gradient, *arguments, **options):
            self.log += [name for name, own in self.gradients.items() if own is gradient]
            accumulate(gradient, *arguments, **options)
        return note

    def command(self, iteration, staleness=0):
        """Return the command with which a server lets the worker compute ``iteration``."""
        method = self.method
        return Command(iteration, 0.1, staleness, str(method), sending=method.sending(),
                       ahead=method.pipelined and staleness + 1 < method.bound)

    def transfer(self, iteration):
        self.attempt += 1
        return TransferId(9 ^ SERVER, Kind.PULL, iteration, self.attempt)

    def grant(self, iteration, staleness=0, rows=()):
        """Complete a pull, which lets the worker compute ``iteration``.

        ``rows``: (row, value) for each chunk of the pull. The chunk carries this row, and all
        elements of the row have this value.
        """
        transfer, actions = self.transfer(iteration - 1), []
        for number, (row, value) in enumerate(rows):
            chunk = Chunk(transfer, number, 0, 1, np.array([row], np.uint8),
                          np.full(PARTITION.lengths[row], value, np.float32).view(np.uint8))
            actions += self.machine.on_chunk(chunk, 0.2)
        end = End(transfer, len(rows), command=self.command(iteration, staleness))
        return actions + self.note(self.machine.on_end(end, 0.2))

    def note(self, actions):
        """Store the actions if they send a push; return all actions."""
        if any(isinstance(getattr(a, 'message', None), (Chunk, End)) for a in actions):
            self.sent = actions
        return actions

    def gradient(self, name):
        gradient = self.gradients[name] = np.ones(PARTITION.elements, np.float32)
        return self.note(self.machine.on_gradient(gradient, replace(SGD, learning_rate=0.1), 0.3))

    def finish_push(self, now=0.4):
        """Accept all messages of the push under way, and complete it."""
        push, actions, end = self.machine.push, self.sent, None
        sent = 0
        while end is None:
            for action in actions:
                message = getattr(action, 'message', None)
                if isinstance(message, Chunk):
                    sent = max(sent, message.packet)
                end = message if isinstance(message, End) else end
            actions = [] if end else self.machine.on_ack(
                Ack(sent, 2 ** 64 - 1, now, push.transfer.incarnation), now)
        taken = np.packbits(np.ones(end.chunks, bool), bitorder='little').tobytes()
        self.machine.on_receipt(Receipt(push.transfer, end.chunks, taken), now)


def computes(actions):
    return [a.iteration for a in actions if isinstance(a, Compute)]


@pytest.mark.parametrize(('sync', 'staleness', 'ahead'), [
    ('rsp:4', 0, []), ('rsp:4+pipeline', 0, [2]), ('rsp:4+pipeline', 2, [2]),
    ('rsp:4+pipeline', 3, []), ('rsp:1+pipeline', 0, []), ('rsp:2+pipeline', 0, [2])])
def test_the_next_gradient_is_computed_while_rows_travel_only_within_the_bound(sync, staleness,
                                                                               ahead):
    worker = Robot(sync)
    assert computes(worker.grant(1, staleness)) == [1]
    actions = worker.gradient('first')
    assert any(isinstance(a, Send) and isinstance(a.message, (Chunk, End)) for a in actions)
    assert computes(actions) == ahead


def test_a_gradient_that_is_early_waits_for_the_push_before_it():
    worker = Robot('rsp:8+pipeline')
    worker.grant(1)
    assert computes(worker.gradient('first')) == [2]
    assert worker.gradient('second') == []   # the push of the first gradient is still under way
    assert worker.log == ['first']
    worker.finish_push()
    assert worker.machine.state == 'waiting' and worker.log == ['first']
    actions = worker.grant(2)
    assert worker.log == ['first', 'second']
    assert worker.machine.push.transfer.iteration == 2
    assert computes(actions) == [3]
    assert worker.machine.state == 'pushing'


def test_a_gradient_that_is_late_becomes_that_of_the_iteration_granted():
    worker = Robot('rsp:8+pipeline')
    worker.grant(1)
    worker.gradient('first')
    worker.finish_push()
    # The fleet is at iteration 5; the gradient that is being computed is used for this iteration.
    assert computes(worker.grant(5)) == []
    assert worker.machine.state == 'computing' and worker.log == ['first']
    assert computes(worker.gradient('second')) == [6]
    assert worker.machine.push.transfer.iteration == 5


def test_the_model_changes_only_when_the_next_gradient_begins():
    worker = Robot('rsp:8+pipeline')
    model = worker.store.model
    worker.grant(1, rows=[(3, 1.0)])
    assert model.sum() == 60                 # the pulled row is in the model
    worker.gradient('first')
    foreseen = model.copy()
    worker.finish_push()
    worker.grant(2, rows=[(4, 1.0)])
    assert (model == foreseen).all()         # the second gradient is being computed on this model
    assert worker.store.weights.sum() == 120
    worker.gradient('second')
    assert worker.store.model is model and (model != foreseen).all()


def test_a_gradient_ahead_is_computed_where_the_step_under_way_will_lead():
    """Check that the predicted model is the weights minus learning rate times momentum."""
    worker = Robot('rsp:8+pipeline')
    worker.grant(1, rows=[(3, 1.0)])
    worker.gradient('first')
    store = worker.store
    expected = store.weights - np.float32(0.1) * store.momentum
    assert (store.model == expected).all() and store.momentum.any()
    worker.finish_push()
    worker.machine.on_end(End(worker.transfer(1), 0, command=Command(stop=True)), 0.2)
    # The final model is the weights, without prediction.
    assert (store.model == store.weights).all()


def test_a_snapshot_does_not_change_the_model_under_a_gradient_without_pipelining_either():
    worker = Robot('rsp:4')
    worker.grant(1)
    model = worker.store.model
    worker.machine.on_server_status(51, True, 0.3)
    worker.machine.on_server_status(51, True, 0.4)
    worker.machine.on_register_response(
        RegisterResponse(True, incarnation=51, attempt=1, sync='rsp:4'), 0.5)
    transfer = TransferId(9 ^ 51, Kind.SNAPSHOT, 0, 1)
    values = np.full(PARTITION.elements, 3.0, np.float32).view(np.uint8)
    ids = np.concatenate([[0], np.ones(EVERY.size - 1)]).astype(np.uint8)
    assert worker.machine.on_chunk(Chunk(transfer, 0, 0, EVERY.size, ids, values), 0.6)
    assert (worker.store.weights == 3).all() and (model == 0).all()
    assert worker.machine.on_end(End(transfer, 1), 0.6)
    worker.gradient('first')
    pull = TransferId(9 ^ 51, Kind.PULL, 0, 2)
    actions = worker.machine.on_end(End(pull, 0, command=worker.command(1)), 0.7)
    assert computes(actions) == [1]
    assert (model == 3).all()


def test_a_worker_that_loses_its_server_meanwhile_keeps_both_gradients():
    worker = Robot('rsp:8+pipeline')
    worker.grant(1)
    worker.gradient('first')
    worker.gradient('second')
    worker.machine.on_server_status(51, True, 0.5)
    worker.machine.on_server_status(51, True, 0.6)
    worker.machine.on_register_response(
        RegisterResponse(True, incarnation=51, attempt=1, sync=str(worker.method)), 0.7)
    # The new server does not know the push, so all rows of the push are pending at the robot again.
    assert np.allclose(worker.store.pending, 0.1 * 1.9)
    pull = TransferId(9 ^ 51, Kind.PULL, 0, 1)
    worker.machine.on_end(End(pull, 0, command=worker.command(1)), 0.8)
    assert worker.log == ['first', 'second']
    assert worker.machine.push.transfer.iteration == 1


@pytest.mark.parametrize(('sync', 'bound'), [('rsp:4', 0), ('rsp:4+pipeline', 4),
                                             ('rsp:2+pipeline', 2), ('rsp:1+pipeline', 1),
                                             ('rsp:auto:3:3+pipeline', 3)])
def test_the_server_lets_a_robot_compute_ahead_only_within_the_bound(sync, bound):
    fleet, told = Fleet(3, 3, sync, rate=1e5), set()
    for robot, seconds in zip(fleet.robots.values(), (0.05, 0.1, 0.6)):
        robot.compute_time = seconds
    send = fleet.send

    def spy(side, action, robot):
        if side is None and isinstance(action.message, End) \
                and action.message.transfer.kind == Kind.PULL:
            command = action.message.command
            assert command.ahead == (command.staleness + 1 < bound)
            told.add(command.ahead)
        send(side, action, robot)
    fleet.send = spy
    fleet.run(10)
    assert told == ({True, False} if bound > 1 else {False})
    assert (fleet.counts['computed ahead'] > 0) == (bound > 1)


def test_on_a_slow_link_a_fleet_that_pipelines_gets_further_within_the_same_bound():
    done = {}
    for sync in ('rsp:6', 'rsp:6+pipeline'):
        fleet = Fleet(3, 3, sync, rate=2e4)
        for robot in fleet.robots.values():
            robot.compute_time = 0.2
        fleet.run(40)
        fleet.check()
        done[sync] = fleet.counts['compute']
        assert (fleet.counts['computed ahead'] > 0) == ('pipeline' in sync)
    assert done['rsp:6+pipeline'] > 1.15 * done['rsp:6']


def test_the_end_of_a_pull_that_overtakes_the_receipt_of_the_push_waits_for_it():
    worker = Robot('asp')
    worker.grant(1)
    worker.gradient('first')
    assert worker.machine.state == 'pushing'
    end = End(worker.transfer(1), 0, command=worker.command(2))
    assert worker.machine.on_end(end, 0.35) == []
    bad = replace(end, chunks=10 ** 9)
    with pytest.raises(RemoteProtocolError):
        worker.machine.on_end(bad, 0.36)
    push = worker.machine.push
    chunks = sum(isinstance(getattr(a, 'message', None), Chunk) for a in worker.sent)
    taken = np.packbits(np.ones(chunks, bool), bitorder='little').tobytes()
    actions = worker.machine.on_receipt(Receipt(push.transfer, chunks, taken), 0.4)
    assert [type(getattr(a, 'message', a)) for a in actions] == [Receipt, Compute]
    assert computes(actions) == [2] and worker.machine.state == 'computing'
