"""Which operators a server executes, by which kernel, and what it says of failed calls."""

import pytest
import torch
from remote import GROUPED
from rrto_bridge.execution.context import Context
from rrto_bridge.execution.kernels import kernel
from rrto_bridge.protocol.errors import Failed, Refused
from rrto_bridge.protocol.operators import resolve
from rrto_bridge.protocol.record import Ref, Special

CPU = torch.device('cpu')
X = torch.rand(2, 6, 4, 4)
SIX, TWO = torch.ones(6), torch.ones(2)
ROWS, MATRICES = torch.rand(12, 16).bfloat16(), torch.rand(3, 16, 16).bfloat16()
ENDS = torch.tensor([4, 8, 12], dtype=torch.int32)
PIVOTS = torch.tensor([1, 2], dtype=torch.int32)


def call(op, *args, **kwargs):
    with torch.inference_mode():
        return kernel(resolve(f'aten.{op}'), CPU)(*args, **kwargs)


@GROUPED
def test_products_of_groups_are_zero_where_there_is_no_group():
    """In a grouped matrix product, output rows and columns that belong to no group are zero.

    PyTorch itself does not write these rows and columns.
    """
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    for _ in range(20):
        for args in ((ROWS, MATRICES, ends), (MATRICES, ROWS.t(), ends)):
            torch.full((12, 16), 7.0).bfloat16()
            made = call('_grouped_mm.default', *args)
            rest = made[5:] if args[0] is ROWS else made[..., 5:]
            assert rest.numel() and not rest.any() and made.any()


def test_operators_of_plain_numbers_are_refused():
    """The server refuses operators whose arguments and results contain no tensor.

    For example, `aten.remainder.int(1, 0)` would crash the server's process.
    """
    for name in ('remainder.int', 'floor_divide.int', 'eq.str', 'add.str'):
        with pytest.raises(Refused):
            resolve(f'aten.{name}')


@pytest.mark.parametrize('name', [
    'resize_.default', 'set_.source_Tensor', '_pin_memory.default', 'from_file.default',
    '_copy_from.default', 'record_stream.default', '_to_sparse.default',
    'quantize_per_tensor.default', '_cudnn_rnn.default', '_nested_view_from_buffer.default',
    'requires_grad_.default', 'an_operator_of_the_next_pytorch.default', '__and__.default',
    'values.default', '_linalg_check_errors.default', 'sum_backward.default', '.default'])
def test_what_no_program_needs_from_a_server_is_refused(name):
    with pytest.raises(Refused):
        resolve(f'aten.{name}')


@pytest.mark.parametrize('op', ['aten.empty.memory_format', 'aten.new_empty.default',
                                'aten.empty_strided.default', 'aten.new_empty_strided.default',
                                'aten.empty.out', 'aten.empty_like.default'])
def test_memory_that_is_not_written_is_zeroed_gaps_too(op):
    """The server zeroes new memory; otherwise a program could read tensors that were freed.

    Also, a replay could otherwise return other values than the original calls.
    """
    context = Context(CPU, 1 << 20)
    with torch.inference_mode():
        for _ in range(20):
            context.add(1, torch.full((4000,), 7.0))
            context.free(1)
            if 'strided' in op:
                args = ((10,), (100,))
                args = args if op.startswith('aten.empty') else (Ref(2), *args)
                context.add(2, torch.ones(1))
                context.execute(op, args, (), 3)
            elif op.endswith('out'):
                context.add(3, torch.empty(0))
                context.execute(op, ((4000,),), (('out', Ref(3)),), 4)
            else:
                context.add(2, torch.ones(4000))
                size = () if 'like' in op else ((4000,),)
                given = () if op.startswith('aten.empty.') else (Ref(2),)
                context.execute(op, (*given, *size), (('dtype', Special('dtype', 'float32')),), 3)
            made = context.tensors[3]
            whole = torch.frombuffer(bytearray(made.untyped_storage().nbytes()), dtype=torch.uint8)
            whole.set_(made.untyped_storage())
            assert whole.numel() >= 3604 and not whole.any()
            context.free(3)


def test_operators_of_a_pytorch_with_cuda_run_on_a_cpu():
    """A server without a GPU runs CUDA's operators, such as cuDNN's batch norm.

    A robot sends these operators if it has PyTorch's default build, which contains CUDA.
    """
    args = (X, SIX * 2, SIX, SIX, SIX * 3, False, 0.1, 1e-5)
    out, mean, rstd, reserve = call('cudnn_batch_norm.default', *args)
    expected = torch.native_batch_norm(*args)
    assert torch.equal(out, expected[0]) and reserve.dtype == torch.uint8
    assert mean.shape == expected[1].shape and rstd.shape == expected[2].shape
    assert torch.equal(call('miopen_batch_norm.default', *args)[0], expected[0])
    theta = torch.rand(2, 2, 3)
    grid = call('cudnn_affine_grid_generator.default', theta, 2, 6, 4, 4)
    assert torch.equal(grid, torch.nn.functional.affine_grid(theta, [2, 6, 4, 4], True))
    assert torch.equal(call('cudnn_grid_sampler.default', X, grid),
                       torch.nn.functional.grid_sample(X, grid, align_corners=True))


# -- calls that fail -------------------------------------------------------------------------------

def test_a_tensor_whose_call_failed_says_why():
    context = Context(CPU, 1 << 20)
    context.failed(10, 'ValueError', 'the first')
    context.failed(1 << 20, 'IndexError', 'the second')
    for handle, text in ((10, 'first'), (12, 'first'), (1 << 20, 'second'), (9, 'no tensor 9')):
        with pytest.raises(RuntimeError, match=text):
            context.tensor(handle)
    context.add(10, torch.ones(1))
    assert context.tensor(10).item() == 1
    for k in range(5000):
        context.failed(100 * k, 'ValueError', 'many')
    with pytest.raises(Failed, match='many'):
        context.tensor(100 * 4999)


def test_a_handle_that_is_used_again_means_the_new_tensor():
    context = Context(CPU, 1 << 20)
    context.add(1, torch.ones(100))
    context.add(1, torch.zeros(10))
    assert context.tensor(1).shape == (10,) and context.used == 40
    context.free(1)
    context.free(1)
    assert context.used == 0
