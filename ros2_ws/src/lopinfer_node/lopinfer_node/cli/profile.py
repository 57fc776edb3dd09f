"""`lopinfer profile MODEL`: measure what each operator costs on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from fleet_env.command import at_least_one

from .choice import add_model, measured, new_file, print_table, traced_model

SHOWN = 10


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'profile', help='measure the time of each operator of a model on this machine')
    add_model(parser)
    parser.add_argument('--repeats', type=at_least_one, default=7, metavar='N',
                        help='passes at each share (default: 7)')
    parser.add_argument('--out', type=new_file, metavar='FILE',
                        help='file of the profile (default: MODEL.profile.json)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    traced = traced_model(options)
    profile = measured(traced, options.repeats)
    out = options.out or Path(options.model.replace(':', '.') + '.profile.json')
    profile.save(out)
    whole = profile.whole
    order = np.argsort(-whole)[:SHOWN]
    rows = [[traced.graph.nodes[i].name, traced.graph.nodes[i].place, f'{whole[i] * 1e3:.3f}',
             f'{profile.fixed[i] * 1e3:.3f}', f'{100 * whole[i] / whole.sum():.1f}'] for i in order]
    print_table(['operator', 'place', 'ms', 'fixed ms', '%'], rows,
                f'{traced.name} on {profile.machine}: {whole.sum() * 1e3:.1f} ms, of which '
                f'{profile.fixed.sum() * 1e3:.1f} ms do not shrink with the share')
    local, global_ = traced.graph.counts()
    print(f'{local} local and {global_} global operators; written to {out}')
    return 0
