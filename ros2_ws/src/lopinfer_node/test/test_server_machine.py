"""The server accepts valid messages, gives reasons for its refusals, and separates its clients."""

import math
from dataclasses import replace

import numpy as np
import numpy_program
import pytest
from fleet_link.arrivals import Arrivals
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime.execution import Form
from lopinfer_node.runtime.outbox import Outbox, Route
from lopinfer_node.runtime.server import (
    KNOWN,
    REFUSALS,
    Join,
    Leave,
    Limits,
    Prepare,
    Prepared,
    PreparePlans,
    Send,
    ServerMachine,
    Unload,
)
from lopinfer_node.runtime.services import (
    MISSING,
    PREPARING,
    PROTOCOL,
    READY,
    REFUSED,
    OpenRequest,
    PlansRequest,
    encode_plans,
)
from lopinfer_node.runtime.wire import (
    FAILED,
    LEAVING,
    MAX_PIECE,
    MAX_PROBE,
    NO_PLAN,
    NOT_OPEN,
    OK,
    PROBE,
    Ack,
    Piece,
    acknowledge,
    plan_number,
)
from numpy_program import Program, expected, small_graph

GRAPH = small_graph()
PLAN = Plan.server_only(GRAPH)
DIGEST = 'a' * 64
COSTS = np.ones(len(GRAPH))


def open_request(client='robot1', incarnation=5, digest=DIGEST, hashes=(1, 2), protocol=PROTOCOL):
    return OpenRequest(protocol, client, incarnation, 'small', digest, ['w', 'b'], list(hashes))


def plans_request(client='robot1', incarnation=5):
    bins, own = encode_plans([PLAN.own, PLAN.own])
    return PlansRequest(client, incarnation, DIGEST, bytes(bins), own)


def serving(*clients, limits=None, plan=PLAN):
    """Return a server that has accepted the model and the plans of all `clients`."""
    server = ServerMachine(9, {DIGEST}, limits)
    prepared = Prepared(plan, Program(plan, SERVER))
    for client in clients:
        reply, actions = server.on_open(open_request(client), 0.0)
        if reply.status == PREPARING:
            assert actions == [Prepare(DIGEST)]
            server.on_model(DIGEST, COSTS, COSTS)
            reply, actions = server.on_open(open_request(client), 0.0)
        assert reply.status == READY and actions == [Join(client)]
        status, _, actions = server.on_set_plans(plans_request(client), 0.0)
        assert status == PREPARING
        server.on_plans(actions[0].request, [prepared] * 2)
        assert server.on_set_plans(plans_request(client), 0.0)[0] == READY
    return server


def pieces_of(inputs, number, incarnation=5, deadline=math.inf, plan=PLAN):
    """Return the pieces that a client sends at time 0 for request `number`."""
    box = Outbox(incarnation, MAX_PIECE)
    run = Program(plan, DEVICE).start(inputs)
    for t in plan.transfers:
        if t.source == DEVICE:
            route = Route(number, plan_number(plan.digest), 1, deadline)
            box.offer(route, t.index, run.piece(t.index))
    return box.poll(0.0)


def finish(server, now=1.0):
    """Let the server compute all steps that can run; return its actions."""
    sent = []
    while (work := server.work(now)) is not None:
        sent += compute(server, work, now)
    return sent


def compute(server, work, now=1.0, seconds=0.5):
    """Compute the steps of a batch; return the server's actions."""
    results = [r.execution.compute(work.steps) for r in work.members]
    return server.on_computed(work, results, seconds, now)


def clients_of(work):
    return [request.client for request in work.members]


def results(sent):
    return {s.client: int(np.frombuffer(s.message.data, np.int64)[0]) for s in sent
            if isinstance(s.message, Piece)}


def test_the_first_piece_opens_a_request_and_the_answer_says_how_long_it_took():
    server = serving('robot1')
    inputs = [np.arange(12)]
    for piece in pieces_of(inputs, 1):
        (ack,) = server.on_piece('robot1', piece, 1.0)
        assert ack.message.status == OK
    sent = finish(server)
    assert results(sent) == {'robot1': expected(GRAPH, inputs)[0]}
    assert sent[-1].message.busy == 0.5 and sent[-1].message.request == 1


def test_a_probe_is_answered_by_one_of_the_same_size_and_then_with_the_down_links_rate():
    server, box, inbox, now = serving('robot1'), Outbox(5, MAX_PIECE), Arrivals(), 1.0
    for _ in range(3):  # before the first probe, no more than two pieces may be on the way
        box.probe(64000, 4)
        up, down, rates, carried = box.poll(now), [], [], 0
        while up or down:
            if up:
                sent = [s.message for s in server.on_piece('robot1', up.pop(0), now)]
            else:
                piece = down.pop(0)
                assert piece.transfer == PROBE
                carried += len(piece.data)
                now += len(piece.data) / 4e6
                sent = [s.message for s in server.on_ack(
                    'robot1', acknowledge(inbox, piece, now), now)]
            for message in sent:
                if isinstance(message, Ack):
                    box.on_ack(message, now)
                    up += box.poll(now)
                    rates.append(message.rate)
                else:
                    down.append(message)
        assert carried == 64000 and len(rates) == 4
        now += 0.25
    assert rates == pytest.approx([4e6] * 4, rel=0.01)


def test_server_never_answers_a_probe_with_more_than_acknowledgements():
    server = serving('robot1')
    claims = Piece(5, 0, 0, 0, PROBE, 65534, 65535, 0, 0.0, bytes(MAX_PIECE)).sealed()
    sent = [s.message for s in server.on_piece('robot1', claims, 1.0)]
    assert sum(len(m.data) for m in sent if not isinstance(m, Ack)) <= MAX_PROBE
    assert [type(s.message) for s in server.on_piece('robot1', claims, 1.0)] == [Ack]


def test_two_clients_with_the_same_request_number_do_not_mix():
    server = serving('robot1', 'robot2')
    inputs = {'robot1': [np.arange(12)], 'robot2': [np.arange(12) * 7 + 1]}
    for client in inputs:
        for piece in pieces_of(inputs[client], 4):
            server.on_piece(client, piece, 1.0)
    assert results(finish(server)) == {c: expected(GRAPH, i)[0] for c, i in inputs.items()}


def ask(server, number, now=1.0, within=None):
    """Let each client send a request; return the waits that the server tells them.

    `within`: seconds that each client waits; None if its pieces do not say so.
    """
    waits = {}
    for k, client in enumerate(server.clients):
        for piece in pieces_of([np.arange(12) + k], number,
                               deadline=within[k] if within else math.inf):
            (ack,) = [a.message for a in server.on_piece(client, piece, now)
                      if isinstance(a.message, Ack)]
            waits[client] = max(waits.get(client, 0.0), ack.wait)
    return waits


def test_a_client_that_would_wait_in_vain_overtakes_the_others():
    server = serving('robot1', 'robot2', 'robot3')
    ask(server, 1)
    finish(server)      # each part takes 0.5 s
    ask(server, 2, within=[9.0, 9.0, 1.6])
    assert clients_of(server.work(1.0))[0] == 'robot1'
    deadline = server._sessions['robot3'].request.deadline
    assert clients_of(server.work(deadline - 1.0))[0] == 'robot3'


def test_equal_requests_are_computed_together_once_that_is_known_to_be_faster():
    server = serving(*(f'robot{k}' for k in range(1, 5)))
    sizes = []
    for number in range(1, 9):
        ask(server, number)
        while (work := server.work(1.0)) is not None:
            sizes.append(len(work.members))
            answers = compute(server, work, seconds=0.1 + 0.01 * len(work.members))
            for client, number_ in results(answers).items():
                assert number_ == expected(GRAPH, [np.arange(12) + int(client[-1]) - 1])[0]
    assert sizes[0] == 1 and sizes[-1] == 4


def test_a_batch_that_takes_no_less_time_is_given_up():
    server = serving(*(f'robot{k}' for k in range(1, 5)))
    sizes = []
    for number in range(1, 20):
        ask(server, number)
        while (work := server.work(1.0)) is not None:
            sizes.append(len(work.members))
            compute(server, work, seconds=0.1 * len(work.members))
    assert sizes[-20:] == [1] * 20


def test_a_program_whose_batch_fails_is_computed_alone_from_then_on():
    server = serving('robot1', 'robot2')
    sizes = []
    for number in range(1, 5):
        ask(server, number)
        while (work := server.work(1.0)) is not None:
            sizes.append(len(work.members))
            done = [r.execution.compute(work.steps) for r in work.members]
            server.on_computed(work, done, 0.1, 1.0, batched=len(done) == 1)
    assert sizes.count(2) == 1


def test_a_malformed_request_fails_alone():
    server = serving('robot1', 'robot2')
    ask(server, 1)
    finish(server)
    ask(server, 2)
    work = server.work(1.0)
    while len(work.members) == 1:
        compute(server, work)
        work = server.work(1.0)
    bad, good = work.members
    done = good.execution.compute(work.steps)
    sent = server.on_computed(work, [None, done], 0.1, 1.0, batched=False)
    sent += finish(server)
    told, *results = sent
    assert (told.client, told.message.status) == (bad.client, FAILED)
    assert {s.client for s in results} == {good.client} and server.dropped['failed'] == 1


def test_a_robot_hears_at_once_that_its_request_failed_and_hears_it_again_for_each_piece():
    server, (piece,) = serving('robot1'), pieces_of([np.arange(12)], 1)
    ack = server.on_piece('robot1', piece, 1.0)[0].message
    told, = server.on_computed(server.work(1.0), [None], 0.1, 1.1)
    assert told.message == replace(ack, status=FAILED)      # so it is no sample of the link
    assert server.on_piece('robot1', piece, 1.2)[0].message.status == FAILED
    piece, = pieces_of([np.arange(12)], 2)
    assert server.on_piece('robot1', piece, 2.0)[0].message.status == OK


def test_requests_with_other_steps_ready_are_no_batch():
    server = serving('robot1', 'robot2')
    for number in (1, 2):
        ask(server, number)
        finish(server)
    pieces = {c: pieces_of([np.arange(12)], 3) for c in server.clients}
    for client, sent in pieces.items():
        for piece in sent[:1] if client == 'robot2' and len(sent) > 1 else sent:
            server.on_piece(client, piece, 1.0)
    while (work := server.work(1.0)) is not None:
        assert {r.execution.runnable() for r in work.members} == {work.steps}
        compute(server, work)


def test_the_server_says_how_long_it_computes_for_others():
    server = serving('robot1', 'robot2', 'robot3')
    assert set(ask(server, 1).values()) == {0.0}      # nothing has been measured
    finish(server)
    waits = ask(server, 2)
    assert waits['robot1'] == 0.0 < waits['robot2'] < waits['robot3']


def test_a_new_request_replaces_the_former_even_while_that_is_computed():
    server = serving('robot1')
    for piece in pieces_of([np.arange(12)], 1):
        server.on_piece('robot1', piece, 1.0)
    old = server.work(1.0)
    done = [r.execution.compute(old.steps) for r in old.members]
    for piece in pieces_of([np.arange(12) + 5], 2):
        server.on_piece('robot1', piece, 1.0)
    assert server.on_computed(old, done, 0.1, 1.0) == []
    assert results(finish(server)) == {'robot1': expected(GRAPH, [np.arange(12) + 5])[0]}
    server.on_piece('robot1', pieces_of([np.arange(12)], 1)[0], 2.0)
    assert server.dropped['late'] == 1 and server.work(2.0) is None


def test_a_piece_of_an_unknown_plan_or_life_is_answered_with_the_reason():
    server = serving('robot1')
    piece = pieces_of([np.arange(12)], 1)[0]
    from dataclasses import replace
    foreign = replace(piece, incarnation=6).sealed()
    assert server.on_piece('robot1', foreign, 1.0)[0].message.status == NOT_OPEN
    for other in ({'plan': 3}, {'bin': 9}):
        unknown = replace(piece, **other).sealed()
        assert server.on_piece('robot1', unknown, 1.0)[0].message.status == NO_PLAN
    assert server.on_piece('robot1', replace(piece, part=1, parts=2).sealed(), 1.0) == []
    assert server.on_piece('robot1', replace(piece, data=b'\1'), 1.0) == []
    assert server.on_ack('robot1', Ack(0, 0, 1.0, 6), 1.0) == []
    assert server.on_ack('robot1', Ack(99, 0, 1.0, 5), 1.0) == []
    assert server.dropped == {'foreign': 2, 'plan': 2, 'corrupt': 3}
    assert server.work(1.0) is None


def test_a_model_with_other_weights_is_refused_by_the_name_of_the_first_that_differs():
    server = serving('robot1', limits=Limits(uploads=False))
    reply, actions = server.on_open(open_request('robot2', digest='b' * 64, hashes=(1, 3)), 1.0)
    assert reply.status == REFUSED and "'b'" in reply.reason and not actions
    server = serving('robot1')
    reply, _ = server.on_open(open_request('robot2', digest='b' * 64, hashes=(0, 3)), 1.0)
    assert reply.status == MISSING and "'w'" in reply.reason


@pytest.mark.parametrize(('request_', 'says'), [
    (open_request('robot2', protocol=99), 'protocol'),
    (open_request('robot2'), 'limit of 1 clients'),
    (open_request('robot1', incarnation=6), 'in use'),
    (open_request('robot1', hashes=(1,)), 'hashes'),
    (open_request('robot 1'), 'namespace'), (open_request('a/../b'), 'namespace'),
    (open_request('a' * 300), 'at most 200 letters')])
def test_server_refuses_an_invalid_open_request_with_the_reason(request_, says):
    server = serving('robot1', limits=Limits(clients=1))
    reply, actions = server.on_open(request_, 1.0)
    assert reply.status == REFUSED and says in reply.reason and not actions
    assert server.clients == ['robot1']


def test_another_life_of_a_client_takes_over_when_the_former_is_silent():
    server = serving('robot1')
    assert server.on_open(open_request(incarnation=6), 3.0)[0].status == READY
    # the plans come from the client's former process, which has another incarnation
    assert server.on_set_plans(plans_request(), 3.0)[0] == REFUSED


def test_a_model_that_can_not_be_served_is_refused_and_may_be_tried_again():
    server = ServerMachine(9, {DIGEST})
    assert server.on_open(open_request(), 0.0)[1] == [Prepare(DIGEST)]
    server.on_model(DIGEST, COSTS, COSTS, 'no such operator')
    assert server.on_open(open_request(), 0.0)[0].reason == 'no such operator'
    assert server.on_open(open_request(), 0.0)[0].status == MISSING


def test_plans_that_are_refused_or_too_large_are_not_used():
    table, reason = [Prepared(PLAN, Program(PLAN, SERVER))] * 2, 'neither side computes [0, 3)'
    for limits, prepared, refusal in ((None, [], reason), (Limits(request_bytes=10), table, '')):
        server = serving('robot1')
        server.limits = limits or server.limits
        server.on_open(open_request('robot3'), 0.0)
        (action,) = server.on_set_plans(plans_request('robot3'), 0.0)[2]
        assert isinstance(action, PreparePlans)
        server.on_plans(action.request, prepared, refusal)
        status, says, _ = server.on_set_plans(plans_request('robot3'), 0.0)
        assert status == REFUSED and says == (refusal or says) and says
        assert server.on_piece('robot3', pieces_of([np.arange(12)], 1)[0], 1.0)[0].message.status \
            == NO_PLAN


def test_a_silent_client_is_forgotten_and_a_heard_one_is_not():
    server = serving('robot1', 'robot2')
    server.on_piece('robot2', pieces_of([np.arange(12)], 1)[0], 20.0)
    assert [a for a in server.on_time(30.0) if not isinstance(a, Send)] == [Leave('robot1')]
    assert server.clients == ['robot2'] and server.deadline <= 50.0


def test_a_failed_request_does_not_affect_other_clients():
    server = serving('robot1', 'robot2')
    for client in server.clients:
        for piece in pieces_of([np.arange(12)], 1):
            server.on_piece(client, piece, 1.0)
    server.on_computed(server.work(1.0), [None], 0.1, 1.0)
    assert len(results(finish(server))) == 1


def test_a_paused_server_finishes_what_is_under_way_and_begins_nothing_new():
    server = serving('robot1')
    inputs = [np.arange(12)]
    first, second = pieces_of(inputs, 1), pieces_of(inputs, 2)
    server.on_piece('robot1', first[0], 1.0)
    server.paused = True
    for piece in first[1:]:
        (ack,) = server.on_piece('robot1', piece, 1.0)
        assert ack.message.status == OK
    assert server.busy(1.0) and results(finish(server)) == {'robot1': expected(GRAPH, inputs)[0]}
    (ack,) = server.on_piece('robot1', second[0], 1.0)
    assert ack.message.status == NOT_OPEN and server.work(1.0) is None
    reply, actions = server.on_open(open_request(), 1.0)
    assert reply.status == REFUSED and 'paused' in reply.reason and not actions
    server.paused = False
    assert server.on_open(open_request(), 1.0)[0].status == READY
    for piece in second:
        server.on_piece('robot1', piece, 1.0)
    assert results(finish(server)) == {'robot1': expected(GRAPH, inputs)[0]}


MIB = 1 << 20


def having(limit, *models, kept=()):
    """Return a server with `limit` MiB of memory for models.

    Each of `models` is a tuple: a digit, the MiB of the loaded model, and the MiB of one request.
    The model's digest repeats its digit. The models whose digits are in `kept` stay in memory even
    if no client uses them.
    """
    server = ServerMachine(9, limits=Limits(memory=limit))
    for digit, loaded, request in models:
        digest = digit * 64
        server.add(digit, digest, [], [], digit in kept)
        assert server.admit(digest, loaded * MIB, request * MIB) == ('', [])
        server.on_model(digest, COSTS, COSTS)
    return server


def join(server, client, digit, now=0.0):
    """Let a client open a model and send plans.

    Returns the server's answer to the plans, as (status, reason), and the actions that follow when
    the plans are prepared.
    """
    request = OpenRequest(PROTOCOL, client, 5, digit, digit * 64, [], [])
    assert server.on_open(request, now)[0].status == READY
    bins, own = encode_plans([PLAN.own])
    plans = PlansRequest(client, 5, digit * 64, bytes(bins), own)
    actions = [a for a in server.on_set_plans(plans, now)[2] if isinstance(a, Unload)]
    actions += server.on_plans(plans, [Prepared(PLAN, Program(PLAN, SERVER))])
    return server.on_set_plans(plans, now)[:2], actions


def test_a_model_that_the_memory_does_not_hold_is_refused_and_hurts_no_other():
    server = having(1000, ('a', 600, 100))
    join(server, 'robot1', 'a')
    server.add('b', 'b' * 64, [], [])
    reason, actions = server.admit('b' * 64, 300 * MIB, MIB)
    assert reason == ('b and one request of it take 301 MiB; of the 1000 MiB that the server has '
                      'for models and requests (its parameter memory), 700 are in use')
    assert not actions
    server.on_model('b' * 64, COSTS, COSTS, reason)
    assert server.free('cpu') == 300 * MIB - sum(
        t.bytes for t in PLAN.transfers) - 4 * PLAN.own.size
    assert server.admit('a' * 64, 0, 0)[0] == ''


def test_models_that_nobody_uses_make_room_the_oldest_first_but_not_those_that_are_kept():
    server = having(1000, ('a', 200, 1), ('b', 200, 1), ('c', 200, 1), ('d', 200, 1), kept='a')
    join(server, 'robot1', 'b')
    server.add('e', 'e' * 64, [], [])
    assert server.admit('e' * 64, 300 * MIB, MIB) == ('', [Unload('c' * 64)])
    assert [d[0] for d in server.models] == ['a', 'b', 'd', 'e']
    actions = server.on_open(OpenRequest(PROTOCOL, 'robot2', 5, 'c', 'c' * 64, [], []), 0.0)[1]
    assert actions == [Prepare('c' * 64)]       # the files are still on the server's disk


def test_server_refuses_a_client_without_memory_until_another_leaves():
    server = having(1000, ('a', 200, 300))
    (status, _), _ = join(server, 'robot1', 'a')
    assert status == READY
    (status, _), _ = join(server, 'robot2', 'a')
    assert status == READY
    (status, reason), _ = join(server, 'robot3', 'a', 25.0)
    assert status == REFUSED and 'a request take 300 MiB' in reason
    assert server.on_time(31.0) == [Leave('robot1'), Leave('robot2')]
    (status, _), _ = join(server, 'robot3', 'a', 32.0)
    assert status == READY
    server.on_time(100.0)
    assert server.free('cpu') == 800 * MIB


def test_requests_make_room_by_unloading_models_that_nobody_uses():
    server = having(1000, ('a', 200, 300), ('b', 600, 1))
    (status, _), actions = join(server, 'robot1', 'a')
    assert status == READY and actions == [Unload('b' * 64)]


def test_plans_take_memory_before_they_are_made():
    server = ServerMachine(9, limits=Limits(memory=100))
    server.add('a', 'a' * 64, [], [])
    assert server.admit('a' * 64, MIB, MIB, 40 * MIB) == ('', [])
    server.on_model('a' * 64, COSTS, COSTS)
    request = OpenRequest(PROTOCOL, 'robot1', 5, 'a', 'a' * 64, [], [])
    server.on_open(request, 0.0)
    for count, wanted in (3, REFUSED), (2, PREPARING):
        own = np.tile(encode_plans([PLAN.own])[1], count)
        status, reason, actions = server.on_set_plans(
            PlansRequest('robot1', 5, 'a' * 64, bytes(count), own), 0.0)
        assert status == wanted and bool(actions) == (wanted == PREPARING)
        assert ('the plans and a request take 121 MiB' in reason) == (wanted == REFUSED)
    server.on_plans(actions[0].request, [], 'no plan')
    assert server.free('cpu') == (server.limits.memory - 1) * MIB


def on_lanes(*devices, robots=3, memory=1000):
    """Return a server with lanes of these devices, and robots with a model of 400 MiB each.

    Returns (server, the lane of each robot's plans).
    """
    server = ServerMachine(9, limits=Limits(memory=memory), devices=devices)
    server.add('small', DIGEST, [], [])
    assert server.admit(DIGEST, 400 * MIB, MIB) == ('', [])
    server.on_model(DIGEST, COSTS, COSTS)
    programs = [Prepared(PLAN, Program(PLAN, SERVER), lane) for lane in range(len(devices))]
    placed = []
    for number in range(robots):
        client = f'robot{number}'
        server.on_open(open_request(client), 0.0)
        *_, action = server.on_set_plans(plans_request(client), 0.0)[2]
        placed.append(action.lane)
        server.on_plans(action.request, [programs[action.lane]] * 2)
        assert server.on_set_plans(plans_request(client), 0.0)[0] == READY
    return server, placed


def test_each_robot_gets_the_lane_with_the_least_to_do_and_a_device_one_copy_of_the_weights():
    server, placed = on_lanes('cuda:0', 'cuda:1', 'cuda:0', robots=7)
    assert sorted(placed[:3]) == sorted(placed[3:6]) == [0, 1, 2] and placed[1] == 2
    assert server.place(DIGEST) == {'cuda:0', 'cuda:1'}
    for device in 'cuda:0', 'cuda:1':
        assert 590 * MIB < server.free(device) < 600 * MIB
    server, placed = on_lanes('cuda:0', 'cuda:1', robots=1)
    assert placed == [0] and server.place(DIGEST) == {'cuda:0'}
    assert server.free('cuda:1') == 1000 * MIB


def test_a_full_device_leaves_its_robots_to_another_one_until_nobody_uses_its_models():
    server, _ = on_lanes('cuda:0', 'cuda:1', robots=1)
    server.add('large', 'b' * 64, [], [])
    assert server.admit('b' * 64, 700 * MIB, MIB) == ('', [])
    server.on_model('b' * 64, COSTS, COSTS)
    assert server.place('b' * 64) == {'cuda:1'}
    join(server, 'robot1', 'b')

    def lane_of(client, now):
        server.on_open(open_request(client), now)
        return server.on_set_plans(plans_request(client), now)[2]
    actions = [lane_of(client, 20.0) for client in ('robot2', 'robot3', 'robot4')]
    assert [a.lane for a, in actions] == [0, 0, 0]
    assert server.on_time(35.0) == [Leave('robot0'), Leave('robot1')]
    unload, prepare = lane_of('robot5', 35.0)
    assert unload == Unload('b' * 64, 'cuda:1') and prepare.lane == 1
    assert server.models == [DIGEST] and server.place(DIGEST) == {'cuda:0', 'cuda:1'}


def test_lanes_compute_what_is_theirs_and_a_failure_stays_with_its_robot():
    server, placed = on_lanes('cpu', 'cpu', robots=4)
    assert sorted(placed) == [0, 0, 1, 1]
    inputs = {f'robot{k}': [np.arange(12) * (k + 1)] for k in range(4)}
    for client, given in inputs.items():
        for piece in pieces_of(given, 1):
            ack = server.on_piece(client, piece, 0.0)[0].message
            assert ack.wait == 0.0      # nothing has been measured yet
    sent = []
    while works := [w for w in (server.work(1.0, lane) for lane in (0, 1)) if w is not None]:
        for work in works:      # both lanes compute at the same time, and end in this order
            found = [None if r.client == 'robot2' else r.execution.compute(work.steps)
                     for r in work.members]
            sent += server.on_computed(work, found, 0.1, 1.0)
    assert results(sent) == {client: expected(GRAPH, given)[0]
                                for client, given in inputs.items() if client != 'robot2'}
    assert server.dropped['failed'] == 1


def test_a_server_that_ends_serves_who_may_not_have_heard_of_it_yet():
    server = serving('robot1')
    inputs = [np.arange(12)]
    first, second, third = (pieces_of(inputs, number) for number in (1, 2, 3))
    server.on_piece('robot1', first[0], 1.0)
    server.leaving = True
    again = server.on_piece('robot1', first[0], 1.0)[0]
    assert again.message.status == LEAVING and server.busy(9.0)
    for piece in second:    # was sent before the robot took that acknowledgement
        assert server.on_piece('robot1', piece, 1.0 + KNOWN / 2)[0].message.status == LEAVING
    assert results(finish(server)) == {'robot1': expected(GRAPH, inputs)[0]}
    ack = server.on_piece('robot1', third[0], 1.0 + KNOWN)[0]
    assert ack.message.status == NOT_OPEN and server.work(1.0) is None


def test_a_late_piece_tells_that_the_server_ends():
    server = serving('robot1')
    first, second = (pieces_of([np.arange(12)], number) for number in (1, 2))
    for piece in (*first, *second):
        server.on_piece('robot1', piece, 1.0)
    server.leaving = True
    assert server.on_piece('robot1', first[0], 2.0)[0].message.status == LEAVING


def test_later_steps_may_be_under_way_when_the_first_results_are_there():
    """A GPU computes on while the bytes of earlier steps are copied."""
    own = PLAN.own.copy()
    own[DEVICE, 4] = 0, 3   # the robot computes this, too, from two results of the server
    plan = Plan(GRAPH, own)
    server = serving('robot1', plan=plan)
    for piece in pieces_of([np.arange(12)], 1, plan=plan):
        server.on_piece('robot1', piece, 0.0)
    queued, sent = [], []
    while (work := server.work(1.0)) is not None:
        work.members[0].execution.queue(work.steps)
        queued.append(work)
    assert len(queued) == 3
    for work in queued:
        assert server.busy(1.0)
        sent += server.on_computed(work, [work.members[0].execution.pieces(work.steps)], 0.1, 1.0)
    assert [s.message.transfer for s in sent] == [t.index for t in plan.transfers
                                                  if t.source == SERVER]
    assert results(sent[-1:]) == {'robot1': expected(GRAPH, [np.arange(12)])[0]}


def test_pictures_that_are_kept_for_changes_take_memory(monkeypatch):
    free = []
    for item in (8, 1):
        monkeypatch.setattr(numpy_program, 'Form', lambda *a, item=item: Form(item, *a[1:]))
        free.append(serving('robot1').free('cpu'))
    assert free[0] - free[1] == 2 * sum(t.bytes for t in PLAN.transfers if t.source == DEVICE) > 0


def test_models_that_are_refused_are_not_remembered_for_ever():
    server = ServerMachine(9)
    for number in range(300):
        digest = f'{number:064x}'
        server.on_stored({digest})
        reply, _ = server.on_open(open_request(digest=digest), 0.0)
        assert reply.status == PREPARING
        server.on_model(digest, COSTS, COSTS, 'it is none')
    assert len(server.models) <= REFUSALS
    assert server.on_open(open_request(digest=digest), 0.0)[0].reason == 'it is none'


def test_names_that_take_much_memory_are_refused():
    request = OpenRequest(PROTOCOL, 'robot1', 5, 'small', DIGEST, ['w' * MIB], [1])
    reply, actions = ServerMachine(9, {DIGEST}).on_open(request, 0.0)
    assert reply.status == REFUSED and 'names of the parameters' in reply.reason and not actions


def test_a_model_whose_files_made_room_for_another_is_asked_for_again():
    server = ServerMachine(9, {DIGEST})
    server.on_stored({'b' * 64})
    assert server.on_open(open_request(), 0.0)[0].status == MISSING


def test_a_client_that_says_that_it_ends_gives_its_name_free_and_its_memory():
    server = serving('robot1')
    free = server.free('cpu')
    server.on_piece('robot1', pieces_of([np.arange(12)], 1)[0], 0.0)
    goodbye = Ack(0, 0, 0.0, 5, LEAVING)
    for _ in range(2):    # the answer may be lost
        assert [a.message.status for a in server.on_ack('robot1', goodbye, 0.1)] == [NOT_OPEN]
    assert server.work(0.1) is None
    assert server.on_open(open_request(incarnation=6), 0.1)[0].status == READY
    server.on_ack('robot1', goodbye, 0.2)   # late, of the former session
    assert server.clients == ['robot1']
    server.on_ack('robot1', Ack(0, 0, 0.0, 6, LEAVING), 0.3)
    assert server.deadline < 2 and server.on_time(server.deadline) == [Leave('robot1')]
    assert server.free('cpu') >= free and not server.clients
