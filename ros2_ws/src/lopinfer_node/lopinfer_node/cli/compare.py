"""`lopinfer compare MODEL`: estimate the latency of all methods, also over a recorded link."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fleet_env.durable import write_text
from fleet_env.links.trace import LinkTrace, read_trace

from ..model.graph import Graph
from ..planning.evaluate import replay, tables
from ..planning.plan import Plan
from ..planning.table import BANDWIDTHS
from ..planning.timeline import Costs, Link, estimate
from .choice import above_zero, add_machines, add_model, print_table, problem, say_planning

SHOWN = (0, 1, 2, 3, 5, 8, 12, 20, 30)


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'compare', help='compare all methods over bandwidth, or over a recorded link')
    add_model(parser)
    add_machines(parser)
    parser.add_argument('--trace', type=Path, metavar='FILE',
                        help='recorded link: a file of "seconds Mbit/s" lines')
    parser.add_argument('--breakdown', type=above_zero, default=8.0, metavar='MB/S',
                        help='bandwidth of the breakdown, MB/s (default: 8)')
    parser.add_argument('--out', type=Path, default=Path('runs/lopinfer'), metavar='DIR',
                        help='directory for figures and compare.json (default: runs/lopinfer)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..planning.plots import draw_bandwidth, draw_breakdown

    trace = read_trace(options.trace) if options.trace else None
    options.out.mkdir(parents=True, exist_ok=True)   # if this fails, measure nothing
    graph, costs = problem(options)
    say_planning(graph)
    plans = tables(graph, costs, options.latency)
    latencies = {name: [_latency(graph, plan, costs, rate, options.latency)
                        for rate, plan in zip(BANDWIDTHS, table, strict=True)]
                 for name, table in plans.items()}
    result: dict[str, object] = {
        'model': graph.name, 'bandwidths': BANDWIDTHS,
        'latency': {name: [s if s < float('inf') else None for s in seconds]
                    for name, seconds in latencies.items()}}
    rows = [[name, *(f'{seconds[k] * 1e3:.1f}' for k in SHOWN)]
            for name, seconds in latencies.items()]
    print_table(['ms at MB/s', *map(str, SHOWN)], rows, f'{graph.name}: latency')
    if trace:
        result['trace'] = _over_trace(trace, options, graph, costs, plans)
    draw_bandwidth(BANDWIDTHS, latencies, options.out / 'bandwidth.png', graph.name)
    k = min(range(len(BANDWIDTHS)), key=lambda k: abs(BANDWIDTHS[k] - options.breakdown * 1e6))
    link = Link(BANDWIDTHS[k], BANDWIDTHS[k], options.latency)
    draw_breakdown({name: estimate(graph, table[k], costs, link) for name, table in plans.items()},
                   options.out / 'breakdown.png', f'{graph.name} at {BANDWIDTHS[k] / 1e6:g} MB/s')
    write_text(options.out / 'compare.json', json.dumps(result) + '\n')
    print(f'figures and compare.json in {options.out}')
    return 0


def _latency(graph: Graph, plan: Plan, costs: Costs, rate: float, latency: float) -> float:
    return estimate(graph, plan, costs, Link(rate, rate, latency)).latency


def _over_trace(trace: LinkTrace, options: argparse.Namespace, graph: Graph, costs: Costs,
                plans: dict[str, Sequence[Plan]]) -> dict[str, dict[str, float]]:
    found = {}
    for name, table in plans.items():
        o = replay(graph, table, costs, trace, latency=options.latency)
        found[name] = {'mean': o.mean, 'std': o.std, 'p95': o.p95, 'energy': o.joules}
    rows = [[name, *(f'{f[key] * 1e3:.1f}' for key in ('mean', 'std', 'p95')),
             f'{f["energy"]:.2f}'] for name, f in found.items()]
    print_table(['over the trace', 'mean ms', 'std ms', 'p95 ms', 'J'], rows,
                str(options.trace))
    return found
