"""Compares programs on a GPU with the same programs on a server's GPU, result by result.

    python saved_results.py ops FILE            operators on PyTorch's sample inputs (`opinfo`)
    python saved_results.py clients FILE        the programs of `clients`
    python saved_results.py compare FILE FILE

Run the first or second line once on the GPU itself, and once as `rrto run -- python ...` with a
server on the same GPU. Each run writes its results to a file. The third line prints the names with
different results, then the number of names for each verdict.

A file of results maps each name to a tuple with one entry for each sample or inference. An entry
is the list of the results, or an error as a text.
"""

import sys
from collections import Counter

import clients
import opinfo
import torch

INFERENCES = 6   # inferences of each program; enough that the last inferences are replayed


def plain(value):
    """Return a result as a tensor that shares no memory with the result, or as a text."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    value = value.detach()
    return value.to_dense() if value.layout is not torch.strided else value.clone()


def of_operators(device):
    """Yield a pair for each operator: its name, and the results of its samples on ``device``."""
    for op in opinfo.operators():
        if op.name in opinfo.FREE:
            continue
        try:
            samples = opinfo.samples_of(op)
        except Exception:
            continue   # PyTorch has no samples for this type
        found = [opinfo.run(op, sample, device) for sample in samples]
        yield opinfo.name_of(op), tuple(
            f'{type(r).__name__}: {r}' if isinstance(r, Exception) else [*map(plain, r)]
            for r in found)


def of_client(name, device):
    """Return the results of a program, or its error; None if its library is not installed."""
    try:
        return tuple([*map(plain, results)] for results in clients.run(name, device, INFERENCES))
    except ModuleNotFoundError as error:
        return print(f'{name}: {error}', file=sys.stderr)
    except Exception as error:
        return (f'{type(error).__name__}: {error}',)


def of_clients(device):
    """Yield a pair for each program whose library is installed: its name, and its results."""
    found = ((name, of_client(name, device)) for name in clients.CLIENTS)
    return ((name, results) for name, results in found if results is not None)


def difference(one, other):
    """Return '' if two results are equal, else how they differ."""
    if isinstance(one, str) or isinstance(other, str):
        return '' if type(one) is type(other) and one == other else f'{one!s:.80} {other!s:.80}'
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f'{one.dtype} {tuple(one.shape)}, {other.dtype} {tuple(other.shape)}'
    kind = torch.complex128 if one.dtype.is_complex else \
        torch.float64 if one.dtype.is_floating_point else one.dtype
    one, other = one.to(kind), other.to(kind)
    unequal = ~((one == other) | (one != one) & (other != other))   # NaN equals NaN
    if not unequal.any():
        return ''
    if kind in (torch.float64, torch.complex128):
        a, b = torch.nan_to_num(one), torch.nan_to_num(other)
        return f'relative difference {float((a - b).abs().max() / a.abs().max()):.1e}'
    return f'{int(unequal.sum())} of {one.numel()} elements differ'


def verdict(one, other):
    """Return (verdict, text) for the results of one name in two files."""
    if one is None or other is None:
        return 'only in one file', ''
    for k, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        failed = isinstance(mine, str), isinstance(theirs, str)
        if any(failed):
            if all(failed):
                continue
            return 'fails in one file', str(mine if failed[0] else theirs)
        said = 'another number of results' if len(mine) != len(theirs) else \
            next(filter(None, map(difference, mine, theirs)), '')
        if said:
            return 'differs', f'{k}: {said}'
    return 'same', ''


def compare(one, other):
    """Print the names with different results; return the number of names for each verdict."""
    count = Counter()
    for name in sorted({*one, *other}):
        found, text = verdict(one.get(name), other.get(name))
        count[found] += 1
        if found != 'same':
            print(f'{name}: {found} {text:.200}')
    return count


if __name__ == '__main__':
    kind, *files = sys.argv[1:]
    if kind == 'compare':
        print(dict(compare(*map(torch.load, files))))
    else:
        place = 'cuda' if torch.cuda.is_available() else 'cpu'
        torch.save(dict({'ops': of_operators, 'clients': of_clients}[kind](place)), files[0])
