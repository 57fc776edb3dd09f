"""Robot and server round alike: the server computes a model with the precision of its robot."""

import json
import threading

import pytest
import torch
from fleet_testing import LIMIT, eventually
from lopinfer_node.errors import ModelError
from lopinfer_node.model import precision
from lopinfer_node.model.calls import Call
from lopinfer_node.model.files import GRAPH
from lopinfer_node.model.precision import Precision
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime.program import Program
from model_files import load, save
from runtime_models import Small

ROUNDING = Precision(matmul=True, convolution=True, float16=False, bfloat16=True)
GPU = torch.device('cuda')


@pytest.fixture(autouse=True)
def as_before():
    before = Precision.of_gpus()
    yield
    before.use()


@pytest.fixture
def ampere(monkeypatch):
    """A GPU that computes in TF32, as far as `Precision` asks."""
    monkeypatch.setattr(precision, '_capability', lambda device: (8, 7))


def traced():
    return trace(Small().eval(), torch.zeros(1, 3, 16, 16))


def test_a_cpu_does_not_round_whatever_the_settings_for_gpus_are():
    ROUNDING.use()
    assert Precision.of(torch.device('cpu')) == traced().tape.precision == Precision()


def test_the_settings_of_the_user_are_the_precision_of_a_gpu(ampere):
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision('high')
    assert (Precision.of(GPU).matmul, Precision.of(GPU).convolution) == (True, False)
    ROUNDING.use()
    assert Precision.of(GPU) == ROUNDING


@pytest.mark.skipif(not hasattr(torch.backends, 'fp32_precision'), reason='PyTorch 2.9 or newer')
def test_the_new_names_of_the_settings_are_read_as_well(ampere):
    torch.backends.cuda.matmul.fp32_precision = 'tf32'
    torch.backends.cudnn.conv.fp32_precision = 'ieee'
    assert (Precision.of(GPU).matmul, Precision.of(GPU).convolution) == (True, False)


def test_a_gpu_without_tf32_does_not_use_it(monkeypatch):
    monkeypatch.setattr(precision, '_capability', lambda device: (7, 5))
    ROUNDING.use()
    assert Precision.of(GPU) == Precision(bfloat16=True)


def test_the_server_computes_with_the_precision_of_the_robot(tmp_path, monkeypatch):
    mine = traced()
    mine.tape.precision = ROUNDING
    save(mine, tmp_path)
    there = load(tmp_path)
    assert there.tape.precision == ROUNDING and there.digest == mine.digest
    seen, bind = [], Call.bind

    def noting(call, **changes):
        run = bind(call, **changes)
        return lambda *tensors: (seen.append(Precision.of_gpus()), run(*tensors))[1]
    monkeypatch.setattr(Call, 'bind', noting)
    plan = Plan.server_only(there.graph)
    robot = Program(mine, plan, DEVICE).start([torch.zeros(1, 3, 16, 16)])
    program = Program(there, plan, SERVER)
    server = program.start()
    assert Precision.of_gpus() != ROUNDING
    for transfer in plan.transfers:
        if transfer.source == DEVICE:
            server.deliver(transfer.index, bytearray(robot.piece(transfer.index)))
    server.compute(range(len(program.steps)))
    assert seen and set(seen) == {ROUNDING}


def test_the_precision_is_part_of_what_a_server_compares():
    one, other = traced(), traced()
    other.tape.precision = ROUNDING
    assert one.digest != other.digest


@pytest.mark.parametrize('state', [None, {}, {'matmul': True}, {**ROUNDING.as_json(), 'matmul': 1},
                                   {**ROUNDING.as_json(), 'more': True}])
def test_a_file_with_another_precision_is_refused(tmp_path, state):
    save(traced(), tmp_path)
    document = json.loads((tmp_path / GRAPH).read_text())
    document['precision'] = state
    (tmp_path / GRAPH).write_text(json.dumps(document))
    with pytest.raises(ModelError, match='precision must have'):
        load(tmp_path)


def test_threads_that_compute_with_another_precision_take_turns():
    """A server with two devices computes two models, and PyTorch has one precision."""
    order, running, may_end = [], threading.Event(), threading.Event()

    def first():
        with ROUNDING.held():
            running.set()
            assert may_end.wait(LIMIT)
            order.append(Precision.of_gpus())

    def then(other):
        with other.held():
            order.append(Precision.of_gpus())
    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert running.wait(LIMIT)
    with ROUNDING.held():       # the same one does not wait
        pass
    for other in Precision(), ROUNDING:     # the third thread waits for the second one
        threads.append(threading.Thread(target=then, args=[other]))
        threads[-1].start()
        eventually(lambda: precision._wanted == Precision())
    may_end.set()
    for thread in threads:
        thread.join(LIMIT)
    assert order == [ROUNDING, Precision(), ROUNDING] and not precision._holders
