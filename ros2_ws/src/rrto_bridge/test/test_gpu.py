"""The server's executor on a GPU; on a machine without a GPU these tests are skipped."""

import pytest
import torch
from rrto_bridge.execution.context import Context, default_generator
from rrto_bridge.execution.executor import ContextExecutor
from rrto_bridge.protocol.record import Ref
from rrto_bridge.protocol.tensors import pack, unpack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')]


@pytest.fixture
def context():
    return Context(torch.device('cuda:0'), 1 << 30)


def test_values_cross_and_come_back(context):
    values = torch.rand(3, 5, 7).transpose(0, 2)
    context.upload(1, *pack(values))
    assert context.tensor(1).is_cuda and torch.equal(unpack(*context.download(1)), values)
    executor = ContextExecutor(context)
    assert torch.equal(unpack(*executor.download(context.tensor(1))), values)


def test_random_operators_draw_from_a_generator_of_the_gpu():
    """Attention, dropout and `randn` use the context's generator on the GPU.

    They do not change PyTorch's default generators of the CPU and the GPU.
    """
    first, second = (Context(torch.device('cuda:0'), 1 << 30) for _ in range(2))
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    drawn = []
    for context in (first, second):
        context.seed(3)
        context.upload(1, *pack(torch.ones(1, 2, 8, 16)))
        context.execute('aten.native_dropout.default', (Ref(1), 0.5, True), (), 2)
        context.execute('aten.randn_like.default', (Ref(1),), (), 4)
        context.execute('aten.scaled_dot_product_attention.default',
                        (Ref(1), Ref(1), Ref(1), None, 0.5), (), 5)
        drawn.append([bytes(context.download(handle)[1]) for handle in (2, 4, 5)])
    assert drawn[0] == drawn[1]
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], torch.cuda.get_rng_state())


def test_the_process_of_a_program_draws_from_pytorchs_own_generator():
    own = default_generator(torch.device('cuda:0'))
    context = Context(torch.device('cuda:0'), 1 << 30, generator=own)
    context.seed(3)
    context.upload(1, *pack(torch.zeros(16)))
    context.execute('aten.uniform_.default', (Ref(1),), (), 2)
    torch.cuda.manual_seed(3)
    assert torch.equal(unpack(*context.download(1)), torch.rand(16, device='cuda').cpu())


def test_batch_norm_of_cudnn_runs_as_what_it_is(context):
    x, ones = torch.rand(2, 6, 4, 4), torch.ones(6)
    for handle, tensor in enumerate((x, ones), 1):
        context.upload(handle, *pack(tensor))
    context.execute('aten.cudnn_batch_norm.default',
                    (Ref(1), Ref(2), Ref(2), Ref(2), Ref(2), False, 0.1, 1e-5), (), 3)
    expected = torch.native_batch_norm(x, ones, ones, ones, ones, False, 0.1, 1e-5)[0]
    torch.testing.assert_close(unpack(*context.download(3)), expected)


def test_a_packed_sequence_has_its_batch_sizes_on_the_cpu(context):
    """PyTorch's kernels refuse batch sizes on the GPU, so the server moves them to the CPU."""
    lstm = torch.nn.LSTM(3, 5)
    packed = torch.nn.utils.rnn.pack_sequence([torch.rand(4, 3), torch.rand(2, 3)])
    with torch.no_grad():
        expected = lstm(packed)[0].data
    given = [packed.data, packed.batch_sizes, torch.zeros(1, 2, 5), torch.zeros(1, 2, 5),
             *lstm.parameters()]
    for handle, tensor in enumerate(given, 1):
        context.upload(handle, *pack(tensor.detach()))
    refs = [Ref(handle) for handle in range(1, len(given) + 1)]
    context.execute('aten.lstm.data', (*refs[:2], tuple(refs[2:4]), tuple(refs[4:]), True, 1, 0.0,
                                       False, False), (), 20)
    torch.testing.assert_close(unpack(*context.download(20)), expected, rtol=1e-3, atol=1e-3)
