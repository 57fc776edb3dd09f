"""`rog study`: repeats the measurements of papers in virtual time."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rog_cli.fleet_options import add_runs, at_least_one
from rog_cli.progress import runs_progress
from rog_core.errors import ConfigError

from rog_studies.catalogue import STUDIES
from rog_studies.study import run_study, text_tables

RIVALS = 'rivals'  # not in `STUDIES`, because its runs depend on the results of its tuning


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'study', help='measure what a paper measured again, in virtual time',
        description='gsgm: training on data of which each robot has a corner (GSGM, Section V). '
                    'gsgm-svrg: the same with variance reduction. coding: gradient coding for '
                    'computers of several speeds that straggle (DGH-GC, Section 6). bounds: '
                    'where waiting for nobody does harm. rivals: every method, '
                    'tuned, on natural images and on a map that robots share.')
    parser.add_argument('study', choices=(*STUDIES, RIVALS), metavar='STUDY',
                        help=', '.join((*STUDIES, RIVALS)))
    parser.add_argument('--only', metavar='A,B,...', help='only the cases that begin like this')
    parser.add_argument('--seeds', type=at_least_one, metavar='K',
                        help='runs of each variant (default: 5; fewer where runs are long)')
    parser.add_argument('--quick', action='store_true',
                        help='rivals: the small version, which needs no data')
    parser.add_argument('--data', type=Path, metavar='DIR',
                        help='rivals: directory that holds cifar10 and traces')
    parser.add_argument('--minutes', type=float, metavar='M',
                        help='rivals: virtual minutes of a run (default: 60)')
    parser.add_argument('--methods', metavar='A,B,...',
                        help='rivals: only these rows of its tables, bsp among them')
    add_runs(parser, 'study')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    only = _listed(options.only)
    out = options.out or Path('runs') / f'study-{options.study}-{time.strftime("%Y%m%d-%H%M%S")}'
    try:
        text, paths = (_rivals if options.study == RIVALS else _study)(options, only, out)
    except KeyboardInterrupt:
        print(f'rog: stopped; finished runs are kept. Go on with --out {out} --resume',
              file=sys.stderr)
        return 130
    print(text)
    print(f'\nResults in {out}:')
    for path in paths:
        print(path)
    return 0


def _study(options: argparse.Namespace, only: list[str], out: Path) -> tuple[str, list[Path]]:
    from rog_studies.figures import draw_study

    study = STUDIES[options.study]
    if options.quick or options.data or options.minutes is not None or options.methods:
        raise ConfigError(f'--quick, --data, --minutes and --methods are of the study {RIVALS}')
    if only:
        study = study.only(only)
    runs = sum(map(len, study.jobs(out, options.seeds).values()))
    with runs_progress(runs) as progress:
        comparisons = run_study(study, out, options.seeds, options.jobs, progress, options.resume,
                                options.cluster)
    return text_tables(study, comparisons), [out / 'study.json', out / 'study.md',
                                             *draw_study(out)]


def _rivals(options: argparse.Namespace, only: list[str], out: Path) -> tuple[str, list[Path]]:
    from rog_studies import rivals

    plan = rivals.plan_of(options.data, options.quick, options.minutes, options.seeds,
                          _listed(options.methods)).only(only)
    with runs_progress(plan.runs) as progress:
        data = rivals.run_rivals(plan, rivals.records_of(options.data), out, workers=options.jobs,
                                 progress=progress, resume=options.resume, cluster=options.cluster)
    return rivals.text_tables(data), [out / 'rivals.json', out / 'rivals.md',
                                      *rivals.draw_rivals(out)]


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or '').split(',') if part.strip()]
