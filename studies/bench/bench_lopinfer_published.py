"""Computes the latencies of every method for six published models and two links.

The bench prints one JSON line with these latencies and the published ones. `gain` is the share by
which LOPInfer's mean latency is below that of the best baseline. `foreseen_ms` is the mean latency
if every request used the best plan of the plan table: the plan that is fastest at the rate that the
link has during this request. `published` holds the thesis's results in ms for device-only,
server-only, the best layer partition and LOPInfer.
"""

import argparse
import json
import time
from pathlib import Path

from fleet_env.links.trace import read_trace
from lopinfer_node.planning import evaluate
from rog_studies import lopinfer_published as published

DATA = Path(__file__).resolve().parents[3] / 'shared/data'


def row(graph, table, costs, trace):
    outcome = evaluate.replay(graph, table, costs, trace)
    foreseen = evaluate.replay(graph, table, costs, trace, foresight=True)
    return {'mean_ms': round(outcome.mean * 1e3, 1), 'std_ms': round(outcome.std * 1e3, 1),
            'p95_ms': round(outcome.p95 * 1e3, 1), 'joules': round(outcome.joules, 3),
            'foreseen_ms': round(foreseen.mean * 1e3, 1)}


def measure(model, traces, pictures):
    graph, device, server = published.load(DATA / f'lop_profiles/{model}.csv', pictures=pictures)
    costs = evaluate.costs_of(graph, device, server)
    began = time.monotonic()
    tables = evaluate.tables(graph, costs)
    result = {'planning_s': round(time.monotonic() - began, 2)}
    for link, trace in traces.items():
        rows = {method: row(graph, table, costs, trace) for method, table in tables.items()}
        ours = rows['lopinfer']['mean_ms']
        best = min((m for m in rows if m != 'lopinfer'), key=lambda m: rows[m]['mean_ms'])
        result[link] = {**rows, 'best_baseline': best,
                        'gain': round(1 - ours / rows[best]['mean_ms'], 4),
                        'published': published.LATENCIES[link][model]}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--models', nargs='+', default=published.MODELS, choices=published.MODELS)
    parser.add_argument('--pictures', action='store_true', help='inputs of one byte per colour')
    arguments = parser.parse_args()
    if not DATA.is_dir():
        print(json.dumps({'bench': 'published', 'skipped': f'{DATA} is not here'}))
        return
    traces = {link: read_trace(DATA / f'traces/lop_{link}.txt') for link in published.LATENCIES}
    print(json.dumps({'bench': 'published', **{
        m: measure(m, traces, arguments.pictures) for m in arguments.models}}))


if __name__ == '__main__':
    main()
