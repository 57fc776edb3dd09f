"""Shape inference by torch's meta device."""

import torch
from rrto_bridge.record import Meta
from rrto_bridge.sequence import substitute


def meta(shape):
    tensor = torch.empty(shape, device='meta')
    return Meta(tuple(tensor.shape), tensor.stride(), 'float32')


def infer(op, arguments, keywords):
    """Metas of the results of 'aten.add.Tensor' and the like."""
    _, name, overload = op.split('.')
    function = getattr(getattr(torch.ops.aten, name), overload)

    def tensor(m):
        return torch.empty_strided(m.shape, m.stride, device='meta')

    result = function(*substitute(arguments, Meta, tensor),
                      **{n: substitute(v, Meta, tensor) for n, v in keywords})
    return tuple(Meta(tuple(t.shape), t.stride(), 'float32') for t in (
        result if isinstance(result, (tuple, list)) else [result]))
