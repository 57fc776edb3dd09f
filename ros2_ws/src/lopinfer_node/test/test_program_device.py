"""Tests which threads may use the device that computes."""

import pytest
import torch
from lopinfer_node.model.files import load, save
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime import program
from lopinfer_node.runtime.program import Program
from runtime_models import Small


@pytest.fixture(scope='module')
def traced():
    return trace(Small().eval(), torch.zeros(1, 3, 16, 16))


def test_compute_copies_delivered_tensors_to_the_device(traced, monkeypatch):
    """`deliver` copies nothing to the GPU; the next `compute` copies the delivered tensors.

    A copy to a GPU may block. The thread that accepts a message holds the lock of the state
    machine, so it must not block.
    """
    brought = []
    monkeypatch.setattr(program, 'uploaded', lambda flat, device: brought.append(flat) or flat)
    plan = Plan.server_only(traced.graph)
    x = torch.rand(1, 3, 16, 16)
    robot, server = Program(traced, plan, DEVICE).start([x]), Program(traced, plan, SERVER).start()
    up = [t.index for t in plan.transfers if t.source == DEVICE]
    for transfer in up:
        server.deliver(transfer, bytearray(robot.piece(transfer)))
    assert not brought
    server.compute(0)
    assert len(brought) == len(up)


def shared(traced, there, x):
    """Let the server compute the whole model; return the model's outputs.

    `traced` and `there`: the traced model on the robot and on the server.
    """
    plan = Plan.server_only(traced.graph)
    programs = Program(traced, plan, DEVICE), Program(there, plan, SERVER)
    robot, server = programs[DEVICE].start([x]), programs[SERVER].start()
    for transfer in plan.transfers:
        if transfer.source == DEVICE:
            server.deliver(transfer.index, bytearray(robot.piece(transfer.index)))
    for step in range(len(programs[SERVER].steps)):
        server.compute(step)
    for transfer in plan.transfers:
        if transfer.source == SERVER:
            robot.deliver(transfer.index, bytearray(server.piece(transfer.index)))
    return robot.outputs()


@pytest.mark.parametrize('device', ['cpu', pytest.param('cuda', marks=[
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')])])
def test_a_server_on_any_device_gives_what_the_robot_gives(traced, tmp_path, device):
    save(traced, tmp_path)
    x = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        expected = Small().eval()(x)
    for found, wanted in zip(shared(traced, load(tmp_path, device), x), expected.values(),
                             strict=True):
        torch.testing.assert_close(found, wanted)
