"""How far one server goes: time per push and pull, and memory, by the number of its robots.

One robot pushes and pulls, chunk by chunk; the others fill the server's tables, so that everything
is there that the server looks at. Each number of robots has a process of its own. Prints one JSON
line: milliseconds of the server per push and pull (the least of the repeats: the machine may be
busy), how many of them one core does in a second, microseconds per question for the next deadline
(which the node asks after every message; not in the former), and resident memory.
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
    """Return the bytes of memory that this process uses."""
    with open('/proc/self/statm', encoding='ascii') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def partition_for(name: str) -> RowPartition:
    """Return the rows of one of `MODELS`."""
    shapes = MODELS[name]
    return model('onebit') if shapes is None else partition_of(shapes)


def measure(name: str, robots: int, repeats: int) -> dict[str, float]:
    """Measure a server with this many robots; must be called in a new process."""
    partition = partition_for(name)
    Pair(partition, 2, 14000).iterate()  # compiles the kernels
    before = resident()
    pair = Pair(partition, robots, 14000)
    pair.iterate()
    runs = [pair.iterate() for _ in range(repeats)]
    seconds, asked = (min(run[name] for run in runs) for name in ('server', 'deadline'))
    memory = resident() - before  # includes one worker, which has four arrays of the model's size
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
