"""Measure the time and the errors of the operator sequence search.

Prints one JSON line. `seconds`: processor time of the whole search over logs of 10^3 to
10^6 calls. `exponent`: slope of log(time) over log(length); 1 means that the time is
linear. The search finds no sequence in these logs, so it always reads the whole log.
There are three kinds of logs:

- `steady`: there are two kinds of passes, each of 230 calls like those of ResNet-50.
  The two kinds alternate in Thue-Morse order.
- `volatile`: the passes repeat, but each pass has other weights, so FullCheck refuses
  again and again.
- `wanted`: each call is a wanted call, whose value the program needs at once.

`append_s`: seconds for appending the same calls to a list, for comparison. `--cases`:
number of generated logs on which test/oracle.py checks the answers of the search. The
search must accept half of these logs and refuse the other half.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from rrto_bridge.protocol.record import DTOH, HTOD, Call, Meta, Ref
from rrto_bridge.search.search import Search

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'test'))

from logs import generate  # noqa: E402
from oracle import answer, wrong  # noqa: E402

SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
MAP = Meta((1, 256, 14, 14), (50176, 196, 14, 1), 'float32')


def one_pass(handles, blocks, scalar, weights):
    """Return the calls of a convolutional network, and the number of handles that they use.

    Each block has the calls convolution, normalisation, activation and sum.
    """
    calls, first = [], handles
    for block in range(blocks):
        x, y, z = Ref(handles), Ref(handles + 1), Ref(handles + 2)
        w = weights + 6 * block
        if block == 0:
            calls.append(Call(HTOD, (), (), (handles,), (MAP,)))
        calls += [
            Call('aten.convolution.default',
                 (x, Ref(w), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1), (),
                 (handles + 1,), (MAP,)),
            Call('aten.native_batch_norm.default',
                 (y, Ref(w + 1), Ref(w + 2), Ref(w + 3), Ref(w + 4), False, 0.1, 1e-5), (),
                 (handles + 2, handles + 3, handles + 4), (MAP,) * 3),
            Call('aten.relu_.default', (z,), (), (handles + 2,), (MAP,)),
            Call('aten.add.Tensor', (z, x), (('alpha', scalar if block == blocks - 1 else 1),),
                 (handles + 5,), (MAP,))]
        handles += 5
    calls.append(Call(DTOH, (Ref(handles),), (), (), (), True))
    return calls, handles + 1 - first


def passes(kind):
    """Yield the passes of an endless program of the given kind."""
    handles, number = 10_000, 0
    while True:
        odd = kind == 'steady' and bin(number).count('1') % 2
        weights = -handles if kind == 'volatile' else 0
        if kind == 'wanted':
            calls = [Call('aten._local_scalar_dense.default', (Ref(k % 2),), (), (), (), True)
                     for k in (number.bit_count() % 2,) * 229]
            for k in range(1, len(calls), 2):
                calls[k] = Call(DTOH, (Ref(number * 229 + k),), (), (), (), True)
            used = 0
        else:
            calls, used = one_pass(handles, 57, 2 if odd else 1, weights)
        yield calls
        handles += used
        number += 1


def measure(kind, size):
    """Return two times in seconds for `size` calls.

    The first is the time of the search, the second the time of a list's `append`.
    """
    search, log = Search(), []
    seconds = appending = 0.0
    source = passes(kind)
    while search.observed < size:
        calls = next(source)[:size - search.observed]
        begin = time.process_time()
        for call in calls:
            if search.observe(call) is not None:
                raise SystemExit('this log has no sequence')
        middle = time.process_time()
        for call in calls:
            log.append(call)  # noqa: PERF402
        appending += time.process_time() - middle
        seconds += middle - begin
    return seconds, appending


def judge(cases):
    """Run the search on generated logs; return the numbers of logs and of each kind of error."""
    counts = {'cases': cases, 'false_acceptance': 0, 'false_rejection': 0, 'late': 0}
    for seed in range(cases):
        steady = seed % 2 == 0
        log = generate(seed, steady=steady)
        found, at = answer(Search(), log)
        if found is None:
            counts['false_rejection'] += steady
        elif not steady or wrong(log, at, found, 3):
            counts['false_acceptance'] += 1
        else:
            counts['late'] += log.clean[at] != 3
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--cases', type=int, default=2000)
    parser.add_argument('--largest', type=int, default=SIZES[-1])
    args = parser.parse_args()
    sizes = [s for s in SIZES if s <= args.largest]
    rows = {kind: [measure(kind, size) for size in sizes]
            for kind in ('steady', 'volatile', 'wanted')}
    result = {'bench': 'rrto_search', 'calls': sizes}
    for kind, row in rows.items():
        seconds = [s for s, _ in row]
        result[kind] = {'seconds': [round(s, 4) for s in seconds], 'exponent': round(float(
            np.polyfit(np.log(sizes), np.log(seconds), 1)[0]), 3)}
    result['append_s'] = [round(c, 5) for _, c in rows['steady']]
    print(json.dumps({**result, **judge(args.cases)}))


if __name__ == '__main__':
    main()
