"""Tests of what the robot sends instead of its tensors: the files of pictures, rounded numbers."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from fleet_compute import pictures
from fleet_compute.inlets import CHANGE, FILE, CodecError, Frames, Inlets, layout_of
from fleet_compute.pictures import picture_of, tensor_of, typical
from fleet_env.pictures import Picture
from lopinfer_node.errors import RemoteError
from lopinfer_node.model.pictures import MEAN, STD, OfImages
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime import execution
from lopinfer_node.runtime.client import OPEN, OPENING, ClientMachine, Settings
from lopinfer_node.runtime.execution import Execution
from lopinfer_node.runtime.measure import encoded_shares
from lopinfer_node.runtime.outbox import Outbox, Route
from lopinfer_node.runtime.program import Program
from lopinfer_node.runtime.wire import FAILED, MAX_PIECE, OK, PIXELS, PROBE, Piece
from PIL import Image
from test_client import REPLY, answer, opened
from test_server_machine import compute, pieces_of, serving


def jpeg(seed):
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC).save(data, 'JPEG')
    return Picture('camera', data.getvalue())


@pytest.fixture
def pair():
    """Return the executions of robot and server for a picture, the model and the picture."""
    torch.manual_seed(0)
    model = OfImages(torch.nn.Conv2d(3, 1, 5, 8), MEAN, STD)
    x = tensor_of(jpeg(0), (96, 128))
    traced = trace(model, typical(96, 128))
    plan = Plan.server_only(traced.graph)
    programs = [Program(traced, plan, side) for side in (DEVICE, SERVER)]
    inlets, route = Inlets(lambda: 1e6), Route(1, 2, 0)
    robot, server = (Execution(side, route, p.steps, plan.transfers, p.start(inputs), inlets)
                     for side, p, inputs in zip((DEVICE, SERVER), programs, ([x], None),
                                                strict=True))
    return robot, server, inlets, model, x


def sent(execution):
    """Compute what can run; return what is sent."""
    found = []
    while steps := execution.runnable():
        found += execution.compute(steps)
    return found


def deliver(server, transfer, data):
    box = Outbox(5, MAX_PIECE)
    box.offer(server.route, transfer, data)
    return [server.take(piece) for piece in box.poll(0.0)][-1]


def test_the_server_computes_with_the_pixels_of_the_file(pair):
    robot, server, _, model, x = pair
    (transfer, data), = sent(robot)
    assert data[0] == FILE and len(data) < x.nbytes / 5
    assert deliver(server, transfer, data)
    for transfer, result in sent(server):
        deliver(robot, transfer, result)
    sent(robot)
    with torch.no_grad():
        torch.testing.assert_close(robot.run.outputs()[0], model(x))


def test_the_robot_decodes_no_picture_that_only_the_server_uses():
    """The second picture: the first has proved that both decode alike."""
    torch.manual_seed(0)
    model = OfImages(torch.nn.Conv2d(3, 1, 5, 8), MEAN, STD)
    traced = trace(model, typical(96, 128))
    plan = Plan.server_only(traced.graph)
    here, there = (Program(traced, plan, side) for side in (DEVICE, SERVER))
    inlets = Inlets(lambda: 1e6)
    for number in (1, 2, 3):
        x = picture_of(jpeg(number), (96, 128))
        route = Route(number, 2, 0)
        robot = Execution(DEVICE, route, here.steps, plan.transfers, here.start([x]), inlets)
        server = Execution(SERVER, route, there.steps, plan.transfers, there.start(None))
        (transfer, data), = sent(robot)
        deliver(server, transfer, data)
        if number == 3:     # the server is late
            result = robot.run.finish_alone()[0]
        else:
            for transfer, data in sent(server):
                deliver(robot, transfer, data)
            sent(robot)
            result = robot.run.outputs()[0]
            inlets.note(number)
        assert (x._made is None) == (number == 2)
        assert min(inlets._alike.values()) > 0      # what decoding took counts
        with torch.no_grad():
            torch.testing.assert_close(result, model(tensor_of(jpeg(number), (96, 128))))


def test_a_server_with_another_decoder_says_so_and_gets_pixels(pair, monkeypatch):
    robot, server, inlets, _, x = pair
    (transfer, data), = sent(robot)
    original = pictures.decode
    monkeypatch.setattr(pictures, 'decode', lambda *a: original(*a) ^ np.uint8(1))
    assert deliver(server, transfer, data)
    with pytest.raises(RemoteError, match='the pixels differ from those of the robot'):
        server.deliver()
    assert server.other_pixels
    inlets.files = False
    assert robot._encoded(transfer)[0] != FILE


def test_the_robot_hears_that_its_files_are_of_no_use():
    server, (piece,) = serving('robot1'), pieces_of([np.arange(12)], 1)
    assert server.on_piece('robot1', piece, 1.0)[0].message.status == OK
    work = server.work(1.0)
    work.members[0].execution.other_pixels = True
    said, = server.on_computed(work, [None], 0.1, 1.1)
    assert said.message.status == FAILED
    piece, = pieces_of([np.arange(12)], 2)
    assert server.on_piece('robot1', piece, 2.0)[0].message.status == PIXELS
    compute(server, server.work(2.0), 2.1)          # this one is served
    machine = opened()
    assert machine.inlets.files
    answer(machine, machine.on_time(machine.deadline), machine.deadline, status=PIXELS)
    assert not machine.inlets.files


def test_a_robot_that_asks_whether_the_server_is_there_hears_it_too():
    """Else the first request after a fallback would be lost, too."""
    server = serving('robot1')
    server._sessions['robot1'].pixels = True
    probe = Piece(5, 0, 0, 0, PROBE, 0, 1, 0, 0.0, bytes(9), size=9).sealed()
    assert server.on_piece('robot1', probe, 1.0)[0].message.status == PIXELS
    machine = opened()
    machine._check(5.0, 'late')
    answer(machine, machine.on_time(machine.deadline), machine.deadline, status=PIXELS)
    assert machine.state == OPEN and not machine.inlets.files


def test_a_new_session_gets_no_changes_of_pictures_that_the_former_one_had():
    machine = opened()
    machine.inlets._rate = lambda: 1e6
    elements, layout = typical(48, 64).numpy().reshape(-1), layout_of((1, 3, 48, 64))
    machine.inlets.encoded('x', elements, layout)
    machine.inlets.note(1)
    machine._enter(OPENING, 'the server does not know this client')
    machine.on_open(replace(REPLY, incarnation=8), 9.0)
    assert machine.inlets.encoded('x', elements, layout)[0] != CHANGE


@pytest.mark.parametrize('error', [CodecError('damaged'), MemoryError()])
def test_after_a_transfer_that_could_not_be_delivered_nothing_is_computed(monkeypatch, error):
    """The mean of the rows that are here would look like a result."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.AdaptiveAvgPool2d(1)).eval()
    traced, x = trace(model, torch.zeros(1, 3, 32, 32)), torch.rand(1, 3, 32, 32)
    cuts = np.array([0 if node.is_global else 16 for node in traced.graph.nodes])
    plan = Plan.of_cuts(traced.graph, cuts, cuts)
    robot, server = (Execution(side, Route(1, 2, 0), program.steps, plan.transfers,
                               program.start([x] if side == DEVICE else None), Inlets(lambda: 1e6))
                     for side in (DEVICE, SERVER) for program in (Program(traced, plan, side),))

    def fails(*_):
        raise error
    (of_input, rows), *(of_conv,) = sent(robot)
    assert deliver(server, of_input, rows)
    server.deliver()
    transfer, data = of_conv
    size = plan.transfers[transfer].bytes
    monkeypatch.setattr(execution, 'decode', fails)
    assert deliver(server, transfer, bytes(data)[:size - 1])
    for call in (server.deliver, server.deliver, lambda: sent(server)):
        with pytest.raises((RemoteError, MemoryError)):
            call()
    with pytest.raises(RemoteError, match='must have been computed or delivered'):
        server.run.compute(range(len(server._steps)))


def test_plans_count_the_bytes_of_the_file():
    model = OfImages(torch.nn.Conv2d(3, 1, 5, 8), MEAN, STD).eval()
    shares = []
    for as_file in (False, True):
        x = typical(96, 128, as_file)
        traced = trace(model, x)
        traced.example = [x]
        shares.append(encoded_shares(traced)[0])
    assert shares[1] < shares[0] / 2


def test_what_the_robot_sends_is_rounded_by_request():
    traced, x = trace(torch.nn.Linear(300, 4).eval(), torch.zeros(2, 300)), torch.randn(2, 300)
    plan, sizes = Plan.server_only(traced.graph), []
    program = Program(traced, plan, DEVICE)
    for precision in ('exact', 'bfloat16'):
        machine = ClientMachine(1, Settings(precision=precision))
        robot = Execution(DEVICE, Route(1, 2, 0), program.steps, plan.transfers,
                          program.start([x]), machine.inlets)
        (_, data), = sent(robot)
        sizes.append(len(data))
    assert x.nbytes // 2 + 24 < sizes[0] <= x.nbytes and sizes[1] <= x.nbytes // 2 + 24


def test_a_camera_that_stands_still_sends_changes():
    traced = trace(OfImages(torch.nn.Conv2d(3, 1, 5, 8), MEAN, STD), typical(48, 64))
    plan, frames = Plan.server_only(traced.graph), Frames()
    machine, sizes = ClientMachine(1), []
    machine.inlets._rate = lambda: 1e6
    programs = [Program(traced, plan, side) for side in (DEVICE, SERVER)]
    for number, x in enumerate([typical(48, 64)] * 2 + [typical(48, 64) // 2], 1):
        robot, server = (Execution(side, Route(number, 2, 0), p.steps, plan.transfers,
                                   p.start(inputs), inlets, of) for side, p, inputs, inlets, of in
                         zip((DEVICE, SERVER), programs, ([x], None), (machine.inlets, None),
                             (None, frames), strict=True))
        (transfer, data), = sent(robot)
        sizes.append((len(data), data[0] == CHANGE))
        assert deliver(server, transfer, data)
        sent(server)
        torch.testing.assert_close(server.run._stretches[traced.graph.inputs[0]][0][2], x)
        machine.inlets.note(number)
    assert sizes[0][0] > 30 * sizes[1][0] and [change for _, change in sizes] == [
        False, True, False]
