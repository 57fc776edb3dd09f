"""The server refuses values that an operator's kernel would not check.

Such values could crash the server or reveal its memory.
"""

import pytest
import torch
from lopinfer_node.errors import ModelError
from model_files import load, write_model

X = {'v': 0}
ONE = {'w': 'one'}
NORM = {'input': X, 'weight': ONE, 'bias': ONE, 'running_mean': ONE, 'running_var': ONE,
        'momentum': 0.1, 'eps': 1e-5}
POOL = {'self': X, 'kernel_size': [1, 1], 'stride': [1, 1], 'padding': [0, 0], 'ceil_mode': False,
        'count_include_pad': True, 'divisor_override': -1}


@pytest.mark.parametrize(('op', 'arguments', 'dtype', 'reason'), [
    ('aten.avg_pool2d.default', POOL, 'int64', 'cannot divide integers by -1'),
    ('aten._native_batch_norm_legit_no_training.default', NORM, 'float32',
     r'weight has shape \[1\] for 4 channels'),
    ('aten.native_batch_norm.default', {**NORM, 'training': False}, 'float32',
     r'weight has shape \[1\] for 4 channels'),
    ('aten.view.dtype', {'self': X, 'dtype': {'dtype': 'quint8'}}, 'uint8',
     'of type torch.quint8 cannot be sent')], ids=['pool', 'norm', 'native norm', 'quantized'])
def test_a_model_is_refused_with_the_reason(op, arguments, dtype, reason, tmp_path):
    made = 'quint8' if 'view' in op else dtype
    folder = write_model(tmp_path / 'model', (2, 4, 3, 3), (op, arguments, (2, 4, 3, 3), made),
                     weights={'one': torch.ones(1)}, dtype=dtype)
    with pytest.raises(ModelError, match=reason):
        load(folder)


@pytest.mark.parametrize('op', ['div', 'divide'])
def test_an_integer_quotient_out_of_range_is_an_error(op, tmp_path):
    arguments = {'self': X, 'other': {'w': 'one'}, 'rounding_mode': 'trunc'}
    folder = write_model(tmp_path / 'model', (2,), (f'aten.{op}.Tensor_mode', arguments, (2,)),
                     weights={'one': -torch.ones(1, dtype=torch.int64)}, dtype='int64')
    traced = load(folder)
    with pytest.raises(ModelError, match='overflows its type'):
        traced.run({0: torch.tensor([torch.iinfo(torch.int64).min, 9])})
