"""Measures the CPU time and the memory of a server for several numbers of robots.

One robot pushes and pulls, chunk by chunk. The other robots exist only in the server's
tables, which therefore have their full size. Each number of robots is measured in
a new process. The bench prints one JSON line with four numbers for each number of robots:

- ``server_ms``: milliseconds that the server needs for one push and its pull. This is
  the minimum of the repeats, because the machine may be busy with other work.
- ``per_s``: how many pushes, each with its pull, one core can process in a second.
- ``deadline_us``: microseconds that the server needs to compute its next deadline once.
  The node computes the deadline after every message; ``server_ms`` does not include this time.
- ``memory_mb``: growth of the resident memory in MB.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from hot_path import Pair, model
from rog_core.model.partition import RowPartition, partition_of

MODELS = {'small': [(f'layer{k}', (256, 1024)) for k in range(4)], 'convmlp-m': None}


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open('/proc/self/statm', encoding='ascii') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def partition_for(name: str) -> RowPartition:
    """Return the partition of the model ``name`` of `MODELS`."""
    shapes = MODELS[name]
    return model('onebit') if shapes is None else partition_of(shapes)


def measure(name: str, robots: int, repeats: int) -> dict[str, float]:
    """Measure a server with ``robots`` robots; the caller must use a new process each time."""
    partition = partition_for(name)
    Pair(partition, 2, 14000).iterate()  # compiles the kernels
    before = resident()
    pair = Pair(partition, robots, 14000)
    pair.iterate()
    runs = [pair.iterate() for _ in range(repeats)]
    seconds, asked = (min(run[name] for run in runs) for name in ('server', 'deadline'))
    memory = resident() - before  # includes the worker's four arrays of model size
    return {'robots': robots, 'server_ms': round(1e3 * seconds, 2),
            'per_s': round(1 / seconds, 1), 'deadline_us': round(1e6 * asked / pair.questions, 1),
            'memory_mb': round(memory / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--model', choices=MODELS, default='small')
    parser.add_argument('--robots', type=int, nargs='+', default=[4, 16, 64, 256])
    parser.add_argument('--repeats', type=int, default=9)
    options = parser.parse_args()
    partition, found = partition_for(options.model), []
    for robots in options.robots:
        with ProcessPoolExecutor(1, get_context('spawn')) as process:
            found.append(process.submit(measure, options.model, robots, options.repeats).result())
    print(json.dumps({'bench': 'scale', 'model': options.model, 'elements': partition.elements,
                      'rows': partition.rows, 'one_core': found}))


if __name__ == '__main__':
    main()
