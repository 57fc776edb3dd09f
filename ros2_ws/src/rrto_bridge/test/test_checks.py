"""The server refuses arguments with which operators would access memory outside their tensors."""

import pytest
import torch
from remote import GROUPED
from rrto_bridge.execution.checks import prepared
from rrto_bridge.execution.context import Context
from rrto_bridge.protocol.allow import allowed, resolve
from rrto_bridge.protocol.errors import Failed, Refused
from rrto_bridge.protocol.operators import NESTED_MASK
from rrto_bridge.protocol.record import Ref, Special

CPU = torch.device('cpu')
X = torch.rand(2, 6, 4, 4)
SIX, TWO = torch.ones(6), torch.ones(2)
ROWS, MATRICES = torch.rand(12, 16).bfloat16(), torch.rand(3, 16, 16).bfloat16()
ENDS = torch.tensor([4, 8, 12], dtype=torch.int32)
PIVOTS = torch.tensor([1, 2], dtype=torch.int32)


def layer(features=6, heads=2, inner=SIX):
    """Return the arguments of an `nn.TransformerEncoder` layer, for sequences of several sizes."""
    source, mask = torch.ones(1, 2, 6), torch.tensor([[True, False]])
    square = torch.ones(6, 6)
    return (source, features, heads, torch.ones(18, 6), torch.ones(18), square, SIX, False, False,
            1e-5, SIX, SIX, SIX, SIX, square, inner, square, SIX, mask, NESTED_MASK)


def call(op, *args, **kwargs):
    with torch.inference_mode():
        return prepared(resolve(f'aten.{op}'), CPU)(*args, **kwargs)


@pytest.mark.parametrize(('op', 'args', 'kwargs'), [
    ('native_batch_norm.default', (X, None, TWO, SIX, SIX, False, 0.1, 1e-5), {}),
    ('native_batch_norm.default', (X, SIX, None, SIX, TWO, True, 0.1, 1e-5), {}),
    ('native_batch_norm.default', (X, None, None, None, None, False, 0.1, 1e-5), {}),
    ('native_batch_norm.default', (X, None, None, SIX, None, True, 0.1, 1e-5), {}),
    ('native_batch_norm.default', (torch.rand(6), None, None, SIX, SIX, False, 0.1, 1e-5), {}),
    ('cudnn_batch_norm.default', (X, SIX, TWO, SIX, SIX, False, 0.1, 1e-5), {}),
    ('_native_batch_norm_legit.default', (X, SIX, SIX, TWO, TWO, True, 0.1, 1e-5), {}),
    ('_native_batch_norm_legit.no_stats', (X, TWO, SIX, True, 0.1, 1e-5), {}),
    ('_native_batch_norm_legit_no_training.default', (X, SIX, SIX, SIX, TWO, 0.1, 1e-5), {}),
    ('_batch_norm_with_update.default', (X, SIX, TWO, SIX, SIX, 0.1, 1e-5), {}),
    ('native_group_norm.default', (X, SIX, SIX, 2, 6, 64, 2, 1e-5), {}),
    ('native_group_norm.default', (X, SIX, SIX, 2, 6, 16, 0, 1e-5), {}),
    ('_fft_r2c.default', (X, [7], 0, True), {}),
    ('_fft_c2c.default', (X.cfloat(), [0, 0], 0, True), {}),
    ('_fft_c2c.default', (X.cfloat(), [-9], 0, True), {}),
    ('_fft_c2r.default', (X.cfloat(), [3], 0, 4000), {}),
    ('rrelu_with_noise.default', (X, torch.ones(1), 0.1, 0.3, True), {}),
    ('rrelu_with_noise_.default', (X, torch.ones(()).expand(X.shape), 0.1, 0.3, True), {}),
    ('segment_reduce.default', (SIX, 'sum'), {'lengths': torch.tensor([6]), 'unsafe': True}),
    ('segment_reduce.default', (SIX, 'sum'), {'lengths': torch.tensor([600])}),
    ('segment_reduce.default', (SIX, 'sum'), {'offsets': torch.tensor([0, 600])}),
    *(pytest.param('_grouped_mm.default', (
        ROWS, MATRICES, torch.tensor(ends, dtype=torch.int32)), {}, marks=GROUPED)
      for ends in ([4, 8, 400], [8, 4, 12], [-3, 4, 12], [], [[4, 8, 12]])),
    pytest.param('_grouped_mm.default', (
        MATRICES, ROWS.t(), torch.tensor([4, 8, 400], dtype=torch.int32)), {}, marks=GROUPED),
    ('linalg_lu_solve.default', (torch.eye(2), PIVOTS * 9, torch.eye(2)), {}),
    ('linalg_ldl_solve.default', (torch.eye(2), PIVOTS * -9, torch.eye(2)), {}),
    ('_weight_norm_interface.default', (torch.rand(6, 3), torch.rand(2, 1), 0), {}),
    ('unfold_backward.default', (torch.ones(9, 4), [600], 0, 4, 2), {}),
    ('unfold_backward.default', (torch.ones(3, 4), [6], 0, 4, 2), {}),
    ('as_strided.default', (SIX, [2**62], [1]), {}),
    ('as_strided_.default', (torch.ones(6), [-2**31, 3, 0], [1, 0, 0]), {}),
    ('as_strided_copy.default', (SIX, [2, 2], [2**62, 2**62], 0), {}),
    ('as_strided_scatter.default', (SIX, SIX, [6], [2], 0), {}),
    ('empty_strided.default', ([2**31, 2**31], [2**31, 1]), {}),
    ('new_empty_strided.default', (SIX, [-1, 0], [1, 1]), {}),
    ('_transformer_encoder_layer_fwd.default', layer(heads=0), {}),
    ('_transformer_encoder_layer_fwd.default', layer(heads=4), {}),
    ('_transformer_encoder_layer_fwd.default', layer(features=0), {}),
    ('_transformer_encoder_layer_fwd.default', layer(inner=SIX[:5]), {}),
    ('_transformer_encoder_layer_fwd.default', layer(inner=SIX.double()), {}),
    ('_native_multi_head_attention.default',
     (SIX.view(1, 1, 6), SIX.view(1, 1, 6), SIX.view(1, 1, 6), 6, 0, torch.ones(18, 6),
      torch.ones(18), torch.ones(6, 6), SIX), {}),
])
def test_what_pytorch_does_not_check_is_checked(op, args, kwargs):
    with pytest.raises(ValueError):
        call(op, *args, **kwargs)


@pytest.mark.parametrize(('op', 'args', 'kwargs'), [
    ('native_batch_norm.default', (X, SIX, None, SIX, SIX, False, 0.1, 1e-5), {}),
    ('_native_batch_norm_legit.no_stats', (X, SIX, SIX, True, 0.1, 1e-5), {}),
    ('native_group_norm.default', (X, SIX, SIX, 2, 6, 16, 3, 1e-5), {}),
    ('_fft_r2c.default', (X, [2, 3], 0, True), {}),
    ('_fft_c2r.default', (X.cfloat(), [3], 0, 6), {}),
    ('segment_reduce.default', (SIX, 'max'), {'lengths': torch.tensor([2, 4])}),
    pytest.param('_grouped_mm.default', (ROWS, MATRICES, ENDS), {}, marks=GROUPED),
    pytest.param('_grouped_mm.default', (MATRICES, MATRICES), {}, marks=GROUPED),
    ('unfold_backward.default', (torch.rand(3, 4), [8], 0, 4, 2), {}),
    ('linalg_lu_solve.default', (torch.eye(2), PIVOTS, torch.eye(2)), {}),
    ('_weight_norm_interface.default', (torch.rand(6, 3), torch.rand(6, 1), 0), {}),
])
def test_what_is_right_gives_what_pytorch_gives(op, args, kwargs):
    torch.testing.assert_close(call(op, *args, **kwargs), resolve(f'aten.{op}')(*args, **kwargs),
                               rtol=0, atol=0)


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


@pytest.mark.parametrize('op', ['ones.out', 'rand.out', 'fft_fftfreq.out'])
def test_a_result_for_which_there_is_no_memory_leaves_out_as_it_was(op):
    """If there is not enough memory for a result, `out` keeps its shape and its values.

    PyTorch itself would give `out` the new shape. The next operator would then access memory
    outside `out`.
    """
    out = torch.ones(2, 3)
    size = (2**62, 1.0) if op.startswith('fft') else ([2**31, 2**31],)
    with pytest.raises(RuntimeError):
        call(op, *size, out=out)
    assert out.shape == (2, 3) and out.tolist() == [[1] * 3] * 2


def test_operators_of_plain_numbers_are_refused():
    """The server refuses operators whose arguments and results contain no tensor.

    For example, `aten.remainder.int(1, 0)` would crash the server's process.
    """
    for name in ('remainder.int', 'floor_divide.int', 'eq.str', 'add.str'):
        with pytest.raises(Refused):
            resolve(f'aten.{name}')


@pytest.mark.parametrize('name', [
    '_reshape_alias', '_unsafe_index_put', '_masked_softmax', 'batch_norm_stats', 'resize_', 'set_',
    'lift', 'pin_memory', '_stack', 'slow_conv3d_forward', 'print', 'from_file', '_copy_from',
    'record_stream', 'to_sparse', 'quantize_per_tensor', '_cudnn_rnn', 'nested_to_padded_tensor',
    'requires_grad_', 'an_operator_of_the_next_pytorch', '_foreach_mm', '__and__', ''])
def test_what_is_not_named_is_refused(name):
    assert not allowed(name)
    with pytest.raises(Refused):
        resolve(f'aten.{name}.default')


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
