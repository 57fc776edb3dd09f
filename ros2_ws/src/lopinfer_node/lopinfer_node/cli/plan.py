"""`lopinfer plan MODEL`: print which side computes what, for every bandwidth."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.graph import Graph, Kind
from ..planning.baselines import BASELINES
from ..planning.objective import Objective
from ..planning.plan import DEVICE, SERVER, Plan
from ..planning.table import plan_table
from ..planning.timeline import Costs, Link, estimate
from .choice import (
    above_zero,
    add_machines,
    add_model,
    bandwidths,
    new_file,
    not_negative,
    picture,
    print_table,
    problem,
    say_planning,
)

if TYPE_CHECKING:
    from ..planning.plots import View

PICTURES = (2e6, 8e6, 20e6)   # bandwidths in bytes/s for which --plot draws timelines


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('plan', help='show where each operator runs, for every bandwidth')
    add_model(parser)
    add_machines(parser)
    parser.add_argument('--bandwidth', type=bandwidths, default=bandwidths('0:30:1'),
                        metavar='0:30:1', help='bandwidths in MB/s (default: 0:30:1)')
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument('--weight', type=not_negative, default=0.0, metavar='S_PER_J',
                        help='minimise latency + weight * energy (default: 0)')
    wanted.add_argument('--deadline', type=above_zero, metavar='S',
                        help='minimise energy among the plans within this latency')
    parser.add_argument('--seed', type=int, default=0,
                        help='seed of the search for plans (default: 0)')
    parser.add_argument('--plot', nargs='?', const='', type=picture, metavar='FILE',
                        help='draw the timelines (default: MODEL.plan.png)')
    parser.add_argument('--out', type=new_file, metavar='FILE', help='file for the plan table')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.plot is not None:
        from ..planning.plots import draw_timeline
    graph, costs = problem(options)
    objective = Objective(options.weight, options.deadline)
    say_planning(graph)
    started = time.perf_counter()
    table = plan_table(graph, costs, options.bandwidth, options.latency, objective, options.seed)
    seconds = time.perf_counter() - started
    rows = []
    for rate, plan in zip(table.bandwidths, table.plans, strict=True):
        link = Link(rate, rate, options.latency)
        found = estimate(graph, plan, costs, link)
        others = [estimate(graph, BASELINES[name](graph, costs, link), costs, link).latency
                  for name in ('device-only', 'server-only', 'dsccs')]
        rows.append([f'{rate / 1e6:g}', *(f'{s * 1e3:.1f}' for s in others),
                     f'{found.latency * 1e3:.1f}', f'{found.energy:.2f}',
                     f'{found.bytes / 1e3:.0f}', f'{found.hidden * 100:.0f}',
                     describe(graph, plan)])
    print_table(['MB/s', 'device ms', 'server ms', 'DSCCS ms', 'LOPInfer ms', 'J', 'kB',
                 'hidden %', 'plan'], rows,
                f'{graph.name}: {len(table)} plans in {seconds:.1f} s')
    if options.out:
        table.save(options.out)
        print(f'written to {options.out}')
    if options.plot is not None:
        path = options.plot or f'{Path(options.model).stem.replace(":", ".")}.plan.png'
        draw_timeline(graph, views(graph, costs, table.bandwidths, table.plans, options.latency),
                      path)
        print(f'drawn in {path}')
    return 0


def views(graph: Graph, costs: Costs, rates: tuple[float, ...], plans: tuple[Plan, ...],
          latency: float) -> list[View]:
    """Return timelines of DSCCS and LOPInfer at a low, a middle and a high bandwidth."""
    from ..planning.plots import View
    chosen = sorted({min(range(len(rates)), key=lambda k: abs(rates[k] - wanted))
                     for wanted in PICTURES})
    found = []
    for k in chosen:
        link = Link(rates[k], rates[k], latency)
        for name, plan in (('dsccs', BASELINES['dsccs'](graph, costs, link)),
                           ('lopinfer', plans[k])):
            found.append(View(name, rates[k], estimate(graph, plan, costs, link)))
    return found


def describe(graph: Graph, plan: Plan) -> str:
    """Describe a plan in a few words: the work of each side, and the transfers."""
    operators = [n for n in graph.nodes if n.kind is Kind.OPERATOR]
    share = [sum((plan.interval(side, n.index)[1] - plan.interval(side, n.index)[0]) / n.extent
                 for n in operators) / len(operators) for side in (DEVICE, SERVER)]
    if not plan.transfers:
        return 'all on the robot'
    if share[DEVICE] == 0:
        return 'all on the server'
    ups = [graph.nodes[t.node].name for t in plan.transfers if t.source == DEVICE]
    downs = [graph.nodes[t.node].name for t in plan.transfers if t.source == SERVER]
    text = f'robot {share[DEVICE] * 100:.0f} %, server {share[SERVER] * 100:.0f} %'
    for arrow, names in (('up', ups), ('down', downs)):
        if names:
            rest = f' and {len(names) - 2} more' if len(names) > 2 else ''
            text += f'; {arrow}: {", ".join(names[:2])}{rest}'
    return text
