"""Tests of the client when the server is slow, gone or newly started."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fleet_link.arrivals import Arrivals
from lopinfer_node.planning.plan import DEVICE, Plan
from lopinfer_node.runtime.choice import LATER, NO_TABLE, PlanChoice, PlannedTable
from lopinfer_node.runtime.client import (
    CHECKING,
    ENDED,
    ENDING,
    OPEN,
    OPENING,
    PLANNING,
    CallOpen,
    CallSetPlans,
    ClientMachine,
    MakePlans,
    Upload,
)
from lopinfer_node.runtime.services import MISSING, PREPARING, READY, REFUSED, OpenReply
from lopinfer_node.runtime.wire import (
    FAILED,
    LEAVING,
    NO_PLAN,
    NOT_OPEN,
    PROBE,
    Ack,
    Piece,
    acknowledge,
    plan_number,
)
from numpy_program import Program, alike, expected, small_graph

GRAPH = small_graph()
INPUT = [np.arange(12)]
TABLE = alike([0.0, 2e6, 20e6], [Plan.device_only(GRAPH), Plan.server_only(GRAPH),
                                 Plan.server_only(GRAPH)], [math.inf, 0.2, 0.05])
NUMBER = plan_number(TABLE.plans[2].digest)
REPLY = OpenReply(READY, '', 7, False, np.ones(len(GRAPH)), np.ones(len(GRAPH)))


def answer(machine, actions, now, rate=20e6, status=0):
    """Acknowledge the pieces in ``actions``, and those that follow, over a link of ``rate`` B/s.

    Returns the other actions that follow, and the time of the last acknowledgement.
    """
    inbox, out, waiting, at = Arrivals(), [], list(actions), now + 0.001
    while waiting:
        piece = waiting.pop(0)
        if isinstance(piece, Piece):
            at += len(piece.data) / rate
            waiting += machine.on_ack(acknowledge(inbox, piece, at, status), at)
        else:
            out.append(piece)
    return out, at


def opened(rate=20e6):
    """Return a machine in state OPEN that has measured a link with ``rate`` bytes/s."""
    machine = ClientMachine(5)
    assert machine.on_time(0.0) == [CallOpen()]
    assert isinstance(machine.on_open(REPLY, 0.1)[0], MakePlans)
    assert machine.on_plans_made(TABLE, 0.2) == [CallSetPlans()]
    _, now = answer(machine, machine.on_plans_set(READY, '', 0.3), 0.3, rate)
    while machine.state == CHECKING:
        _, now = answer(machine, machine.on_time(machine.deadline), machine.deadline, rate)
        assert now < 0.9
    assert machine.state == OPEN
    return machine


def test_a_call_that_finds_no_service_is_repeated_soon():
    machine = ClientMachine(5)
    assert machine.on_time(0.0) == [CallOpen()]
    assert machine.deadline == 2.0, 'a call that was made may take that long'
    machine.on_no_service(0.0)
    assert machine.deadline < 0.5
    assert machine.on_time(machine.deadline) == [CallOpen()]


def begin(machine, now):
    bin_ = machine.choose(now)
    program = Program(machine.table.plans[bin_], DEVICE)
    run = program.start(INPUT)
    execution = machine.begin(bin_, program.steps, run, now)
    return run, machine.on_computed(execution.compute(machine.work(now)), 0.001, now)


@pytest.mark.parametrize(('rate', 'bin_'), [(20e6, 2), (19.8e6, 2), (18e6, 1), (2e6, 1)])
def test_the_bin_is_that_of_the_measured_bandwidth(rate, bin_):
    assert opened(rate).choose(1.0) == bin_


def test_below_the_first_shared_bin_the_robot_is_alone():
    assert opened(1e6).choose(1.0) is None


def test_an_idle_probe_decides_the_bin_after_a_fade():
    machine = opened(20e6)
    probe = machine.on_time(machine.deadline)
    assert {p.transfer for p in probe} == {PROBE} and sum(len(p.data) for p in probe) == 64000
    answer(machine, probe, machine.deadline, rate=2e6)
    assert machine.choose(2.0) == 1


def test_the_down_links_bandwidth_is_what_the_server_measured_and_decides_too():
    machine = opened(20e6)
    plans, chosen = TABLE.plans, np.array([[0, 0, 0], [1, 1, 1], [1, 1, 2]])
    machine.choice.table = PlannedTable(TABLE.bandwidths, plans, chosen, 0.1 + chosen)
    # until the downlink has been measured, the client assumes that its rate is the uplink's rate
    assert machine.choose(1.0) == 2
    now = machine.deadline
    for piece in machine.on_time(now):
        machine.on_ack(Ack(piece.packet, 0, now + 0.01, 5, rate=2e6), now + 0.01)
    assert machine.rates[1] == 2e6 and machine.choose(now + 0.2) == 1
    _, pieces = begin(machine, now + 0.3)
    assert machine.report.estimate == 1.1 and len(pieces)
    machine.on_ack(Ack(pieces[0].packet, 0, now + 0.31, 5, rate=math.nan), now + 0.31)
    assert machine.rates[1] == 2e6


def test_client_acknowledges_a_probe_of_the_server_without_a_request():
    machine = opened()
    probe = Piece(5, 0, 0, 0, PROBE, 0, 4, 0, 0.0, bytes(16000)).sealed()
    assert [type(a) for a in machine.on_piece(probe, 1.0)] == [Ack]
    assert not machine.dropped


def test_a_missing_model_is_sent_and_a_server_that_prepares_is_asked_again():
    machine = ClientMachine(5)
    machine.on_time(0.0)
    assert machine.on_open(OpenReply(MISSING, 'who?'), 0.1) == [Upload()]
    assert machine.on_uploaded('', 9.0) == [CallOpen()]
    assert machine.on_open(OpenReply(PREPARING), 9.1) == []
    assert machine.on_time(machine.deadline) == [CallOpen()]


def test_a_refusal_is_remembered_as_the_reason_and_asked_again_later():
    machine = ClientMachine(5)
    machine.on_time(0.0)
    machine.on_open(OpenReply(REFUSED, "parameter 'w' has other values"), 0.1)
    assert "'w'" in machine.reason and machine.state == OPENING and machine.choose(0.2) is None
    assert 1.0 < machine.deadline < 10.0


def test_a_server_that_does_not_answer_costs_its_deadline_and_is_then_left_alone():
    machine = opened()
    run, pieces = begin(machine, 1.0)
    assert pieces
    limit = 1.0 + max(2 * 0.05, 0.05 + 0.1)
    assert machine.limit == pytest.approx(limit)
    assert machine.work(limit - 1e-3) == range(1, 1)     # the request still waits for the server
    assert machine.work(limit) is None
    assert run.finish_alone() == expected(GRAPH, INPUT)
    machine.end(limit, 1.0)
    assert machine.state == CHECKING and machine.report.fallbacks == 1
    assert machine.choose(limit) is None


def test_a_request_that_the_server_cannot_compute_waits_no_longer():
    machine = opened()
    _, pieces = begin(machine, 1.0)
    failed = Ack(pieces[-1].packet, 0, 1.01, 5, status=FAILED, wait=4.0)
    machine.on_ack(replace(failed, packet=pieces[0].packet - 1), 1.005)     # of a former request
    assert machine.work(1.005) == range(1, 1)
    machine.on_ack(failed, 1.01)
    assert machine.changed and machine.work(1.01) is None
    machine.end(1.02, 1.0)
    assert machine.reason == 'the server could not compute the request'
    answer(machine, machine.on_time(2.5), 2.5)
    begin(machine, 2.6)         # the next one
    assert machine.work(2.6) == range(1, 1) and machine.limit > 2.7


def test_a_request_waits_longer_while_the_server_serves_others():
    machine = opened()
    _, pieces = begin(machine, 1.0)
    limit = machine.limit
    assert limit == pytest.approx(1.0 + pieces[0].within)
    machine.on_ack(Ack(pieces[-1].packet, 0, 1.01, 5, rate=20e6, wait=4.0), 1.01)
    assert machine.limit == pytest.approx(limit + LATER * 4.0)
    for nonsense in (math.nan, math.inf, -1.0):
        machine.on_ack(Ack(pieces[-1].packet, 0, 1.02, 5, rate=20e6, wait=nonsense), 1.02)
    assert machine.limit == pytest.approx(limit + LATER * 4.0)


def test_a_request_does_not_wait_for_others_longer_than_the_robot_alone_takes():
    choice = PlanChoice(alike([0.0, 2e6], [Plan.device_only(GRAPH), Plan.server_only(GRAPH)],
                              [0.5, 0.1]))
    assert choice.wait(0.2, 0.0) == pytest.approx(LATER * 0.2) and choice.wait(9.0, 0.0) == 0.5


def test_a_probe_that_is_answered_brings_the_server_back_after_the_penalty():
    machine = opened()
    begin(machine, 1.0)
    machine.work(2.0)
    machine.end(2.0, 1.0)
    answer(machine, machine.on_time(2.5), 2.5)
    assert machine.state == OPEN and machine.choose(2.6) == 2


def test_an_answer_to_a_piece_from_before_the_fallback_does_not_bring_it_back():
    machine = opened()
    _, pieces = begin(machine, 1.0)
    machine.work(2.0)
    answer(machine, pieces, 2.0)
    assert machine.state == CHECKING


BETTER = alike([0.0, 1e6], [Plan.device_only(GRAPH), Plan.server_only(GRAPH)], [0.1, 0.02])


def test_a_second_table_is_used_once_the_server_has_it_too():
    machine = opened()
    assert machine.on_plans_made(BETTER, 1.0) == [CallSetPlans()]
    assert machine.state == PLANNING and machine.choose(1.0) is None
    answer(machine, machine.on_plans_set(READY, '', 1.1), 1.1)
    assert machine.state == OPEN and machine.choose(1.2) == 1


def test_a_table_that_comes_during_a_request_waits_for_its_end():
    machine = opened()
    begin(machine, 1.0)
    assert machine.on_plans_made(BETTER, 1.1) == []
    assert machine.state == OPEN and machine.table is TABLE
    assert machine.end(1.2, 1.0) == [CallSetPlans()]
    assert machine.table is BETTER


@pytest.mark.parametrize(('machine', 'why'), [
    (ClientMachine(5), 'opening: not connected yet'), (opened(1e6), 'at 1.0 MB/s')])
def test_a_request_that_is_not_shared_says_why(machine, why):
    assert machine.choose(1.0) is None and why in machine.alone


def test_a_late_piece_of_an_abandoned_request_is_acknowledged_and_dropped():
    machine = opened()
    run, _ = begin(machine, 1.0)
    machine.work(2.0)
    down = next(t for t in TABLE.plans[2].transfers if t.source != DEVICE)
    late = Piece(5, 0, 0, 1, down.index, 0, 1, 2, 0.0, bytes(down.bytes),
                 size=down.bytes).sealed()
    assert [type(a) for a in machine.on_piece(late, 2.1)] == [Ack]
    assert machine.dropped['late'] == 1 and not run.there[down.node].any()


def test_a_late_piece_of_the_request_before_is_not_taken_for_this_one():
    machine = opened()
    begin(machine, 1.0)
    run, _ = begin(machine, 1.1)
    down = next(t for t in TABLE.plans[2].transfers if t.source != DEVICE)
    late = Piece(5, NUMBER, 0, 1, down.index, 0, 1, 2, 0.0, bytes(down.bytes),
                 size=down.bytes)
    machine.on_piece(late.sealed(), 1.2)
    assert machine.dropped['late'] == 1 and not run.there[down.node].any()
    machine.on_piece(Piece(5, NUMBER, 1, 2, down.index, 0, 1, 2, 0.0,
                           bytes(down.bytes), size=down.bytes).sealed(), 1.2)
    assert run.there[down.node].all()


def test_a_server_that_was_restarted_is_opened_again_and_gets_the_plans():
    machine = opened()
    _, pieces = begin(machine, 1.0)
    out, _ = answer(machine, pieces, 1.0, status=NOT_OPEN)
    assert out == [CallOpen()] and machine.state == OPENING
    # The server has restarted and has lost the request. So the robot must finish the request alone,
    # although the request's deadline has not passed.
    assert machine.work(1.01) is None
    assert machine.on_open(OpenReply(READY, '', 8), 1.1) == [CallSetPlans()]


def test_a_server_without_the_plans_gets_them():
    machine = opened()
    probe = machine.on_time(machine.deadline)
    assert answer(machine, probe[:1], 1.5, status=NO_PLAN)[0] == [CallSetPlans()]
    assert machine.state == PLANNING


def test_a_server_that_falls_silent_while_idle_is_noticed_without_a_request():
    machine, now = opened(), 1.0
    while machine.state == OPEN:
        now = max(now, machine.deadline)
        machine.on_time(now)
    assert now < 2.5
    while machine.state == CHECKING:
        now = max(now, machine.deadline)
        machine.on_time(now)
    assert machine.state == OPENING and now < 10.0


@pytest.mark.parametrize('other', [{'incarnation': 6}, {'data': b'\1' * 8}])
def test_foreign_and_damaged_pieces_are_dropped_without_an_answer(other):
    machine = opened()
    begin(machine, 1.0)
    from dataclasses import replace
    good = Piece(5, NUMBER, 0, 1, 1, 0, 1, 2, 0.0, bytes(8)).sealed()
    assert machine.on_piece(replace(good, **other), 1.01) == []
    assert sum(machine.dropped.values()) == 1


def test_another_model_is_opened_anew_with_the_plans_that_fit_or_with_new_ones():
    machine = opened()
    assert machine.on_model(TABLE, 1.0) == [CallOpen()]
    assert machine.choose(1.1) is None and 'the model was updated' in machine.alone
    assert machine.on_open(OpenReply(MISSING, 'who?'), 1.2) == [Upload()]
    assert machine.on_uploaded('', 1.3) == [CallOpen()]
    assert machine.on_open(OpenReply(READY, '', 8), 1.4) == [CallSetPlans()]
    answer(machine, machine.on_plans_set(READY, '', 1.5), 1.5)
    assert machine.state == OPEN and machine.choose(1.6) == 2
    assert machine.on_model(NO_TABLE, 2.0) == [CallOpen()]
    assert machine.choose(2.1) is None
    assert isinstance(machine.on_open(OpenReply(READY, '', 9), 2.2)[0], MakePlans)


HERE, THERE = Plan.device_only(GRAPH), Plan.server_only(GRAPH)


def with_others(here, there):
    """Return a machine whose chosen plan uses the server and takes 0.1 s.

    The alternatives are the robot alone (``here`` seconds) and the server alone (``there``
    seconds).
    """
    machine = opened()
    machine.on_plans_made(PlannedTable(
        [0.0, 1e6], [HERE, THERE, THERE], np.array([[0, 0], [0, 2]]),
        np.array([[here, here], [here, 0.1]]), np.array([[[0, 0], [0, 0]], [[0, 0], [0, 1]]]),
        np.array([np.full((2, 2), here), [[here, here], [here, there]]])), 0.9)
    answer(machine, machine.on_plans_set(READY, '', 0.9), 0.9)
    return machine


def ask(machine, now, taken):
    """Run a request and return the number of its plan, or None for the robot alone.

    ``taken`` maps the plan's number to the seconds that the request takes.
    """
    plan = machine.choose(float(now))
    if plan is not None:
        program = Program(machine.table.plans[plan], DEVICE)
        machine.begin(plan, program.steps, program.start(INPUT), float(now))
    machine.end(now + taken[plan], float(now))
    return plan


def test_a_plan_that_takes_longer_than_another_is_left_after_a_few_requests():
    machine = with_others(0.14, 0.12)
    taken = {2: 0.2, 1: 0.125, None: 0.14}
    plans = [ask(machine, now, taken) for now in range(1, 20)]
    assert plans[:4] == [2] * 4 and plans[4:] == [1] * 15
    # The table estimates 0.12 s for this plan. The measured requests correct it to 0.125 s.
    assert machine.report.estimate == pytest.approx(0.125)


def test_where_every_shared_plan_takes_longer_the_robot_is_alone_and_says_why():
    machine = with_others(0.14, 0.12)
    plans = [ask(machine, now, {2: 0.2, 1: 0.3, None: 0.14}) for now in range(1, 20)]
    assert plans[-1] is None and plans.count(2) == plans.count(1) == 4
    assert 'by what recent requests have taken' in machine.alone


def test_client_measures_requests_on_the_robot_alone():
    machine = with_others(0.09, 0.12)
    plans = [ask(machine, now, {2: 0.1, 1: 0.12, None: 0.3}) for now in range(1, 20)]
    assert plans[:4] == [None] * 4 and set(plans[4:]) == {2}


def test_a_plan_whose_estimate_is_a_little_higher_is_measured_and_taken_if_it_is_faster():
    machine = with_others(0.14, 0.108)
    plans = [ask(machine, now, {2: 0.1, 1: 0.09, None: 0.14}) for now in range(1, 20)]
    assert plans == [2] * 4 + [1] * 15
    machine = with_others(0.108, 0.14)
    plans = [ask(machine, now, {2: 0.1, 1: 0.14, None: 0.09}) for now in range(1, 20)]
    assert plans == [2] * 4 + [None] * 15


def test_measuring_other_plans_costs_a_few_requests_a_minute():
    machine = with_others(0.108, 0.108)
    plans = [ask(machine, now, {2: 0.1, 1: 0.11, None: 0.11}) for now in range(1, 55)]
    assert plans[:12] == [2] * 4 + [None] * 4 + [1] * 4 and plans[12:] == [2] * 42
    machine = with_others(0.12, 0.12)
    assert {ask(machine, now, {2: 0.1}) for now in range(1, 55)} == {2}


def test_a_plan_that_was_left_is_tried_again_later():
    machine = with_others(0.14, 0.12)
    taken = {2: 0.2, 1: 0.125, None: 0.14}
    assert [ask(machine, now, taken) for now in range(1, 9)][-1] == 1
    assert ask(machine, 90, {**taken, 2: 0.1}) == 2


def test_one_slow_request_changes_nothing():
    machine = with_others(0.14, 0.12)
    taken = [0.1, 0.9, 0.1, 0.8, 0.1, 0.1, 0.1]
    assert [ask(machine, now, {2: seconds})
            for now, seconds in enumerate(taken, 1)] == [2] * 7


@pytest.mark.parametrize(('alone', 'waits'), [(0.13, 1.25 * 0.11), (0.17, 0.17), (0.5, 2 * 0.11)])
def test_a_request_waits_as_the_latest_ones_took_or_as_the_robot_alone_would_take(alone, waits):
    machine = with_others(alone, 0.4)
    for now in range(1, 20):
        ask(machine, now, {2: 0.11})
    machine.choose(30.0)
    program = Program(machine.table.plans[2], DEVICE)
    machine.begin(2, program.steps, program.start(INPUT), 30.0)
    assert machine.limit == pytest.approx(30 + waits)


def test_the_time_of_the_check_is_in_what_is_expected_and_in_no_plans_record():
    machine = with_others(0.14, 0.12)
    assert machine.choose(1.0, 0.03) == 2
    program = Program(machine.table.plans[2], DEVICE)
    machine.begin(2, program.steps, program.start(INPUT), 1.0)
    assert machine.report.estimate == pytest.approx(0.13) and machine.report.check == 0.03


def test_a_client_that_ends_says_so_until_the_server_answers():
    machine = opened()
    for _ in range(3):
        goodbye, = machine.leave(2.0) if machine.state == OPEN else \
            machine.on_time(machine.deadline)
        assert goodbye.status == LEAVING and machine.state == ENDING
        assert machine.choose(2.0) is None
    assert machine.on_ack(Ack(0, 0, 2.0, 5, NOT_OPEN), 2.5) == []
    assert machine.state == ENDED and machine.deadline == math.inf
    fresh = ClientMachine(5)
    assert fresh.leave(0.0) == [] and fresh.state == ENDED   # nobody knows it
