"""Runs operators on PyTorch's sample inputs, on rrto's device and on a CPU.

`python opinfo.py [MODE]` prints how many operators return the same bits, how many raise an error
only on the device, how many differ, and how many have no samples. It needs `expecttest`, which
PyTorch's testing modules import.
"""

import itertools
import os
import sys
import warnings
from collections import Counter

import torch

SAMPLES = int(os.environ.get('RRTO_SAMPLES', '3'))   # number of samples of each operator

# PyTorch does not define the values that these operators return, because they contain uninitialised
# memory. The LAPACK routine of `lstsq` starts from such memory.
FREE = frozenset(('linalg.lstsq',
                  'empty', 'empty_like', 'empty_strided', 'empty_permuted', 'new_empty',
                  'new_empty_strided', 'resize_', 'resize_as_'))


def operators():
    """Return the operators for which PyTorch has sample inputs."""
    from torch.testing._internal.common_methods_invocations import op_db
    return op_db


def name_of(op):
    return op.name + (f'.{op.variant_test_name}' if op.variant_test_name else '')


def samples_of(op):
    """Return the first `SAMPLES` sample inputs of an operator.

    Their type is float32 if the operator supports it, otherwise another type.
    """
    dtype = min(op.dtypes, key=lambda t: (t != torch.float32, str(t)), default=None)
    torch.manual_seed(1)
    return list(itertools.islice(op.sample_inputs('cpu', dtype), SAMPLES))


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device)
    if isinstance(value, dict):
        return {k: moved(v, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [moved(v, device) for v in value]
        return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)
    return torch.device(device) if isinstance(value, torch.device) else value


def flat(value):
    """Return the tensors and scalars in the result of an operator."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def run(op, sample, device):
    """Run an operator on a sample; return its results, copied to the CPU, or its error."""
    arguments = moved((sample.input, list(sample.args), dict(sample.kwargs)), device)
    torch.manual_seed(5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            result = flat(op.op(arguments[0], *arguments[1], **arguments[2]))
            return [v.cpu() if isinstance(v, torch.Tensor) else v for v in result]
        except Exception as error:
            return error


def bits(tensor):
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return dense.flatten().view(torch.uint8).numpy().tobytes()


def same(a, b):
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.shape, a.dtype, a.layout) != (
                b.shape, b.dtype, b.layout):
            return False
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        return bits(a) == bits(b)
    return type(a) is type(b) and (a == b or a != a)


def judge(op):
    """Return (verdict, text) for an operator: 'same', 'error', 'differs' or 'no samples'."""
    try:
        samples = samples_of(op)
    except Exception as error:
        return 'no samples', str(error)
    verdict, text = 'same', ''
    for sample in samples:
        expected = run(op, sample, 'cpu')
        got = run(op, sample, 'cuda')
        if isinstance(expected, Exception):
            continue
        if isinstance(got, Exception):
            verdict, text = 'error', f'{type(got).__name__}: {got}'
        elif op.name in FREE:
            continue
        elif len(got) != len(expected) or not all(map(same, expected, got)):
            return 'differs', str(sample)[:80]
    return verdict, text


def table(mode, said=lambda line: None):
    """Return for each verdict the names and texts of the operators with this verdict."""
    import remote  # imported here, because `saved_results` needs this module without `remote`
    remote.start(mode)
    found = {}
    for op in operators():
        name = name_of(op)
        verdict, text = judge(op)
        found.setdefault(verdict, {})[name] = text
        if verdict != 'same':
            said(f'{verdict:10} {name}: {text[:150]!r}')
    return found


if __name__ == '__main__':
    found = table(sys.argv[1] if len(sys.argv) > 1 else 'async', lambda t: print(t, flush=True))
    print(Counter({verdict: len(names) for verdict, names in found.items()}))
