"""Tests of one side of a request.

A step runs when its inputs are available, and its results are sent at once.
"""

from dataclasses import replace

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.errors import RemoteError
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime.execution import Execution
from lopinfer_node.runtime.outbox import Route
from lopinfer_node.runtime.wire import Piece
from numpy_program import Program, expected, random_plan, small_graph

GRAPH = small_graph()
ROUTE = Route(1, 77, 3)


def piece(transfer, data):
    return Piece(5, 77, 0, 1, transfer, 0, 1, 3, 0.0, bytes(data), size=len(data)).sealed()


def execution(side, plan, inputs=None):
    program = Program(plan, side)
    return Execution(side, ROUTE, program.steps, plan.transfers, program.start(inputs))


@examples(200)
@given(st.randoms(use_true_random=False))
def test_two_sides_that_exchange_what_they_send_get_the_result(random):
    plan, inputs = random_plan(GRAPH, random), [np.arange(12) * 3]
    sides = {DEVICE: execution(DEVICE, plan, inputs), SERVER: execution(SERVER, plan)}
    coming = []
    while not all(s.done for s in sides.values()):
        turns = [('compute', s) for s in sides if sides[s].runnable()] \
            + [('deliver', i) for i in range(len(coming))]
        assert turns, 'both sides wait for each other'
        what, which = random.choice(turns)
        if what == 'compute':
            steps = sides[which].runnable()
            coming += [(1 - which, piece(t, d)) for t, d in sides[which].compute(steps)]
        else:
            to, arriving = coming.pop(which)
            assert sides[to].take(arriving)
    assert sides[DEVICE].run.outputs() == expected(GRAPH, inputs)
    assert not coming


@examples(50)
@given(st.randoms(use_true_random=False))
def test_no_step_is_computed_between_one_that_sends_and_its_sending(random):
    plan = random_plan(GRAPH, random)
    side = execution(DEVICE, plan, [np.arange(12)])
    steps = Program(plan, DEVICE).steps
    while ready := side.runnable():
        assert not any(steps[s].sends for s in ready[:-1])
        side.compute(ready)


def test_a_server_decodes_where_it_computes_and_a_robot_at_once(monkeypatch):
    """Few bytes can take long to decode, and the server takes pieces with a lock for all."""
    plan = Plan.server_only(GRAPH)
    up, down = plan.transfers
    side = execution(SERVER, plan)
    with monkeypatch.context() as patch:
        patch.setattr('lopinfer_node.runtime.execution.decode', None)
        assert side.take(piece(up.index, b'damaged')) and side.runnable()
    with pytest.raises(RemoteError, match=f'transfer {up.index}'):
        side.deliver()
    robot = execution(DEVICE, plan, [np.arange(12)])
    robot.compute(robot.runnable())
    with pytest.raises(RemoteError):
        robot.take(piece(down.index, b'damaged'))
    assert not robot.runnable()


@pytest.mark.parametrize('other', [{'plan': 78}, {'bin': 4}, {'transfer': 99}])
def test_a_piece_of_another_plan_is_refused(other):
    plan = Plan.server_only(GRAPH)
    side = execution(SERVER, plan)
    up = next(t for t in plan.transfers if t.source == DEVICE)
    good = piece(up.index, bytes(up.bytes))
    with pytest.raises(RemoteError):
        side.take(replace(good, **other))
    assert side.take(good)
